"""The table of what can be measured of a recording, by the words of ``measure``."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from dynaquant_core.experiments.ablation.binned_replay import BinnedReplay
from dynaquant_core.experiments.ablation.coded_replay import CodedReplay
from dynaquant_core.experiments.job import Job
from dynaquant_core.experiments.replay import Replay

__all__ = ["REPLAYS"]

#: Word -> what does it; call ``run`` of what it makes of a job.
REPLAYS: Mapping[str, Callable[[Job], Replay | BinnedReplay]] = {
    "saves": Replay,
    "coders": CodedReplay,
    "bins": BinnedReplay,
}
