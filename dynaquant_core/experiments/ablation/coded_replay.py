"""``measure: coders``: a replay whose checkpoints' codes are coded once more by every coder.

The codes are those of the files that the replay writes: each is read back from its store.  The base of a
checkpoint is the one before, also where the file is a key, so that all coders see the same differences.
"""

from __future__ import annotations

from typing import Any, final

from dynaquant_core.experiments.ablation.coders import CODERS, coded_bytes
from dynaquant_core.experiments.job import Job
from dynaquant_core.experiments.life import note
from dynaquant_core.experiments.recorder import Recorder
from dynaquant_core.experiments.replay import Replay
from dynaquant_core.methods.dynaquant.held import Coded, Held
from dynaquant_core.store.catalogue import Catalogue
from dynaquant_core.store.chain import open_chain

__all__ = ["CodedReplay"]

#: Streams that hold codes; whatever else the file has of the weights is the same for all coders.
CODES = frozenset({"codes", "drawn"})


@final
class CodedReplay(Replay):
    """A `Replay` of method ``dynaquant`` that notes an event ``coders`` after each checkpoint."""

    def __init__(self, job: Job) -> None:
        super().__init__(job)
        self._before: Held | None = None

    def _checkpoint(self, step: int, recorder: Recorder) -> None:
        super()._checkpoint(step, recorder)
        scan = Catalogue(self._job.store).scan()
        with open_chain(scan, scan.current()[step]) as chain:
            held = chain.hold()["weights"].reference
            written = [stream for stream in chain.last.index.streams if stream.part == "weights"]
            raw = sum(spec.nbytes for spec in chain.last.specs("weights").values())
        assert isinstance(held, Held)
        side = sum(stream.nbytes for stream in written if stream.kind not in CODES)
        note(self._job, "coders", step=step, raw_bytes=raw, side_bytes=side, **self._coded(held))
        self._before = held

    def _coded(self, held: Held) -> dict[str, Any]:
        """Bytes of all codes by coder, and how many weights are codes."""
        sizes, weights = dict.fromkeys(CODERS, 0), 0
        for name, tensor in held.tensors.items():
            if isinstance(tensor, Coded):  # else it was kept whole, beyond the cube: part of the side
                base = None if self._before is None else self._before.coded(name)
                for coder, size in coded_bytes(tensor.codes, None if base is None else base.codes).items():
                    sizes[coder] += size
                weights += tensor.codes.size
        return {"bytes": sizes, "coded_weights": weights}
