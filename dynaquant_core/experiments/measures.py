"""What a checkpoint lost of the movement of training (which is what a restore costs, beside the loss)."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

__all__ = ["MovementWatch", "Weights"]

Weights = Mapping[str, Tensor]


class MovementWatch:
    """Compares true and decoded weights over one life of the training process.

    Args:
        start: the weights this process began from (initial, or as restored).
        restored: whether they were restored: then a reader held them before the first save.

    With M = W_t - W_start, D = What_t - W_start and a = <D, M> / ||M||^2 (all tensors together):
    ``stale = 1 - a`` (movement that a restore would lose), ``noise = ||D - a M||^2 / ||M||^2`` (what it would
    add, which training heals), ``er = ||W_t - What_t||^2 / ||W_t - What_(t-1)||^2``.

    Example:
        >>> watch = MovementWatch({"w": torch.zeros(2)}, restored=False)
        >>> watch.lost({"w": torch.tensor([2.0, 0.0])}, {"w": torch.tensor([1.5, 1.0])})
        {'stale': 0.25, 'noise': 0.25, 'er': None}
    """

    def __init__(self, start: Weights, *, restored: bool) -> None:
        self._start = {name: tensor.detach().clone() for name, tensor in start.items()}
        self._previous: Weights | None = self._start if restored else None

    def lost(self, true: Weights, decoded: Weights) -> dict[str, float | None]:
        """``{"stale", "noise", "er"}``; a value is None where its denominator is zero or does not exist."""
        mm = dm = dd = error = error_before = 0.0
        for name, start in self._start.items():
            live, got = true[name].detach().double(), decoded[name].double()
            moved, taken = live - start.double(), got - start.double()
            mm += _dot(moved, moved)
            dm += _dot(taken, moved)
            dd += _dot(taken, taken)
            error += _dot(live - got, live - got)
            if self._previous is not None:
                before = live - self._previous[name].double()
                error_before += _dot(before, before)
        return {
            "stale": 1.0 - dm / mm if mm else None,
            "noise": max(0.0, dd - dm * dm / mm) / mm if mm else None,
            "er": error / error_before if error_before else None,
        }

    def unchanged(self, decoded: Weights) -> float | None:
        """Share of weights whose decoded value is that of the checkpoint before; None for the first."""
        if self._previous is None:
            return None
        same = sum(int((decoded[name] == tensor).sum()) for name, tensor in self._previous.items())
        total = sum(tensor.numel() for tensor in self._previous.values())
        return same / total if total else None

    def advance(self, decoded: Weights) -> None:
        """Makes ``decoded`` the checkpoint before; call it after the other two."""
        self._previous = {name: decoded[name].detach().clone() for name in self._start}


def _dot(a: Tensor, b: Tensor) -> float:
    return float(torch.dot(a.flatten(), b.flatten()))
