"""What a node of the graph holds in place of a tensor that it saved, and the bytes of all of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from dynaquant_core.errors import GradientError
from dynaquant_core.memory.smaq.format import Packed
from dynaquant_core.memory.smaq.gates import Gated
from dynaquant_core.memory.smaq.memory_layout import View

__all__ = ["Kept", "Ledger", "Memory", "Run", "is_packed", "unpack"]


class Ledger:
    """Bytes of packed tensors that are alive.

    Attributes:
        live, peak: packed bytes now, and the most there were.
        live_raw, peak_raw: what autograd would hold in their place: the memory behind them, each piece once.
    """

    def __init__(self) -> None:
        self.live = self.peak = self.live_raw = self.peak_raw = 0

    def add(self, stored: int, raw: int) -> None:
        """Takes account of one more, or of one less."""
        self.live += stored
        self.live_raw += raw
        self.peak = max(self.peak, self.live)
        self.peak_raw = max(self.peak_raw, self.live_raw)


class Memory:
    """A storage that autograd would hold, counted as long as a run of it is packed."""

    def __init__(self, raw: int, ledger: Ledger) -> None:
        self._raw, self._ledger = raw, ledger
        ledger.add(0, raw)

    def __del__(self) -> None:
        self._ledger.add(0, -self._raw)


class Run:
    """A packed run of memory, alive as long as a node of the graph needs it."""

    def __init__(self, packed: Packed, memory: Memory, ledger: Ledger) -> None:
        self.packed: Packed | Kept = packed
        self.memory: Memory | None = memory
        self._ledger = ledger
        self._stored = packed.nbytes
        ledger.add(self._stored, 0)

    def values(self) -> Tensor:
        """The run.

        Raises:
            GradientError: it is held as it is, and was written to since.
        """
        return self.packed.read() if isinstance(self.packed, Kept) else self.packed.decode()

    def give_way(self, exact: Kept) -> None:
        """Lets go of what is packed, where somebody holds the run as it is."""
        self._ledger.add(-self._stored, 0)
        self.packed, self.memory, self._stored = exact, None, 0

    def __del__(self) -> None:
        self._ledger.add(-self._stored, 0)


@dataclass(frozen=True, slots=True)
class Kept:
    """A saved tensor that is left alone.

    Args:
        tensor: another view of its memory.
        version: of that memory when it was saved; autograd compares none where there are hooks.
    """

    tensor: Tensor
    version: int

    @classmethod
    def of(cls, tensor: Tensor) -> Kept:
        """What is kept of a tensor, outside of the graph."""
        return cls(tensor.detach(), tensor._version)

    def read(self) -> Tensor:
        """The tensor.

        Raises:
            GradientError: it was written to since, so that gradients would be those of other values.
        """
        if self.tensor._version != self.version:
            raise GradientError(
                f"SmaQ: a tensor of shape {tuple(self.tensor.shape)} that backward needs was written to in "
                f"place after it was saved (version {self.tensor._version}, expected {self.version}), as a "
                f"weight by a step or a batch; write to it after backward, or to a clone."
            )
        return self.tensor


def is_packed(kept: Any) -> bool:
    """Whether what a node holds in place of a tensor gives other gradients than the tensor."""
    if isinstance(kept, Kept) or not isinstance(kept[0], Run):
        return False
    return not isinstance(kept[0].packed, (Kept, Gated))


def unpack(kept: Any) -> Tensor:
    """The tensor that a node saved: a `Kept`, or what has its values (a `Run`, say) and the view of them."""
    if isinstance(kept, Kept):
        return kept.read()
    held, view = kept
    assert isinstance(view, View)
    with torch.no_grad():
        return view.of(held.values())
