"""What tells runs of a grid apart where their entries do not: a learning rate, a batch, names kept exact."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from dynaquant_core.experiments.config.experiment import Experiment
from dynaquant_core.experiments.price import TRAINING

__all__ = ["varied"]

#: Settings that labels and tables of a page name anyway, or which no two runs differ in.
TOLD = frozenset(
    {"name", "output", "grid", "kind", "of", "measure", "axis", "seed", "seeds", "method", "moments"}
    | {"threshold", "fix", "search", "model.name", "rework.size", "rework.point", "system"}
)


def varied(runs: Sequence[Experiment]) -> list[dict[str, Any]]:
    """For each run its values of the settings that tell it from others of the same model, by dotted key.

    No more settings than are needed for that: of optimizers that differ in their names, the names.  Those
    that decide about the training come first, and tell different trainings apart by themselves.

    Args:
        runs: of one grid.
    """
    found: list[dict[str, Any]] = [{} for _ in runs]
    settings = [dict(_leaves("", _settings(run))) for run in runs]
    for model in dict.fromkeys(run.model.name for run in runs):
        mine = [place for place, run in enumerate(runs) if run.model.name == model]
        keys = _telling([settings[place] for place in mine])
        for place in mine:
            found[place] = {key: settings[place][key] for key in keys if key in settings[place]}
    return found


def _settings(run: Experiment) -> dict[str, Any]:
    """Those that an entry does not tell; failures are, by their number, unless their steps are named."""
    data = run.as_dict()
    return data if isinstance(run.failures, dict) else data | {"failures": {}}


def _leaves(prefix: str, data: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Dotted key and value of everything in nested mappings that is not `TOLD`; names of sections first."""
    for key, value in sorted(data.items(), key=lambda item: item[0] != "name"):
        dotted = f"{prefix}{key}"
        if dotted in TOLD:
            continue
        if isinstance(value, Mapping):
            yield from _leaves(f"{dotted}.", value)
        else:
            yield dotted, value


def _telling(settings: Sequence[Mapping[str, Any]]) -> list[str]:
    """Keys that tell apart all of these that differ; each tells some apart that those before it do not.

    Uninterrupted runs are put together by the keys of `TRAINING` alone, so that nothing else may stand in for
    one of them.
    """
    chosen: list[str] = []
    apart = [""] * len(settings)
    for key in sorted(dict.fromkeys(key for each in settings for key in each), key=_decides_nothing):
        finer = [f"{known} {json.dumps(each.get(key))}" for known, each in zip(apart, settings, strict=True)]
        if len(set(finer)) > len(set(apart)):
            chosen.append(key)
            apart = finer
    return chosen


def _decides_nothing(key: str) -> bool:
    """Whether the training is the same whatever this is."""
    return key.partition(".")[0] not in TRAINING
