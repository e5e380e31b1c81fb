"""What a peer has to do: tensors into files of a folder, and back from nothing but these files."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from torch import Tensor

__all__ = ["Coder", "Meets", "Note", "Tensors"]

#: Name -> tensor, on the CPU; the same names, shapes and dtypes at every checkpoint of a run.
Tensors = Mapping[str, Tensor]

#: Whether decoded weights keep what was asked of this checkpoint (`guards`).
Meets = Callable[[Tensors], bool]


@dataclass(frozen=True, slots=True)
class Note:
    """What a coder says of one checkpoint that it wrote.

    Args:
        seconds: to encode it as it was written, a search for the setting left out.
        setting: what was chosen, in the peer's own words.
        tried: settings that were encoded, decoded and judged.
    """

    seconds: float
    setting: str = ""
    tried: int = 0

    @classmethod
    def since(cls, started: float) -> Note:
        """Of a coder that has nothing to choose; ``started``: by `time.perf_counter`."""
        return cls(time.perf_counter() - started)


class Coder(Protocol):
    """Weights or moments of successive checkpoints into files.

    One object writes all checkpoints of a run in order, another one reads them in the same order: a coder of
    differences holds what was decoded last, and a reader has nothing but the files.
    """

    def write(self, tensors: Tensors, folder: Path, meets: Meets) -> Note:
        """Writes a checkpoint into an empty folder.

        Args:
            tensors: what is to be kept.
            folder: exists; all bytes that a reader needs, but those of earlier checkpoints.
            meets: judges decoded weights; coders without a knob do not ask.

        Raises:
            ExperimentError: the peer cannot keep such tensors; says which.
        """
        ...

    def read(self, folder: Path) -> dict[str, Tensor]:
        """What the files of a checkpoint say, under the names that were written."""
        ...
