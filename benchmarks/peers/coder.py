"""What a peer has to do: tensors into files of a folder, and back from nothing but these files."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeVar

from torch import Tensor

__all__ = ["Coder", "Meets", "Note", "Tensors", "coarsest"]

#: Name -> tensor, on the CPU; the same names, shapes and dtypes at every checkpoint of a run.
Tensors = Mapping[str, Tensor]

#: Whether decoded weights keep what was asked of this checkpoint (`guards`).
Meets = Callable[[Tensors], bool]

Result = TypeVar("Result")


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


def coarsest(
    tried: Callable[[int], Result], meets: Callable[[Result], bool], finest: int, top: int, guess: int
) -> tuple[int, Result, int]:
    """The largest whole number whose result meets; the finest where none does.

    The top is tried first, then numbers around the guess in doubling distances until one meets and one does
    not, then the interval between them is halved.  Right where what meets at one number meets at all that are
    smaller; elsewhere it ends at one of the places where meeting ends.

    Args:
        tried: result of a number.
        meets: judges a result.
        finest: smallest number.
        top: largest.
        guess: where to look first; the nearer the fewer are tried.

    Returns:
        The number, its result, and how many were tried.

    Example:
        >>> coarsest(lambda number: number * 10, lambda result: result <= 42, -8, 8, 3)
        (4, 40, 5)
    """
    found: dict[int, tuple[Result, bool]] = {}

    def good(number: int) -> bool:
        if number not in found:
            result = tried(number)
            found[number] = result, meets(result)
        return found[number][1]

    low, high, stride = finest - 1, top, 1  # low meets or lies below all, high does not meet
    place = min(max(guess, finest), top - 1)
    if good(top):
        return top, found[top][0], 1
    while high - low > 1:
        if good(place):
            low = place
        else:
            high = place
        bracketed = low >= finest and high < top
        place = (low + high) // 2 if bracketed else place + stride if low == place else place - stride
        place, stride = min(max(place, low + 1), high - 1), 2 * stride
    number = max(low, finest)
    good(number)
    return number, found[number][0], len(found)
