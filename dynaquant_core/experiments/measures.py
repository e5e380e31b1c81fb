"""What a checkpoint lost of the movement of training (which is what a restore costs, beside the loss)."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping

import torch
from torch import Tensor, nn

from dynaquant_core.methods.base import Hints
from dynaquant_core.methods.lattice.norm import keeps_norm
from dynaquant_core.search.quality import Degradation, Quality

__all__ = ["MovementWatch", "Weights", "by_direction", "standard_error"]

Weights = Mapping[str, Tensor]


class MovementWatch:
    """Compares true and decoded weights over one life of the training process.

    Args:
        start: the weights this process began from (initial, or as restored).
        restored: whether they were restored: then a reader held them before the first save.
        directions: names of those that count by their direction alone (`by_direction`).

    With M = W_t - W_start, D = What_t - W_start and a = <D, M> / ||M||^2 (all tensors together):
    ``stale = 1 - a`` (movement that a restore would lose), ``noise = ||D - a M||^2 / ||M||^2`` (what it would
    add, which training heals), ``er = ||W_t - What_t||^2 / ||W_t - What_(t-1)||^2``.  Where there are
    directions, ``stale_direction`` too: stale where each of them has What multiplied by what makes its part
    along W_t as long as W_t.  A length that was kept, or lost, is no movement there; a turn that was lost is.

    Example:
        >>> watch = MovementWatch({"w": torch.zeros(2)}, restored=False)
        >>> watch.lost({"w": torch.tensor([2.0, 0.0])}, {"w": torch.tensor([1.5, 1.0])})
        {'stale': 0.25, 'noise': 0.25, 'er': None}
    """

    def __init__(self, start: Weights, *, restored: bool, directions: Collection[str] = ()) -> None:
        self._directions = frozenset(directions)
        self._start = {name: tensor.detach().clone() for name, tensor in start.items()}
        self._previous: Weights | None = self._start if restored else None

    def lost(self, true: Weights, decoded: Weights) -> dict[str, float | None]:
        """``{"stale", "noise", "er"}``, and ``"stale_direction"`` where there are directions.

        A value is None where its denominator is zero or does not exist.
        """
        mm = dm = dd = error = error_before = turned = 0.0
        for name, start in self._start.items():
            live, got = true[name].detach().double(), decoded[name].double()
            moved, taken = live - start.double(), got - start.double()
            along = _dot(taken, moved)
            mm += _dot(moved, moved)
            dm += along
            dd += _dot(taken, taken)
            error += _dot(live - got, live - got)
            turned += _dot(_as_long(got, live) - start, moved) if name in self._directions else along
            if self._previous is not None:
                before = live - self._previous[name].double()
                error_before += _dot(before, before)
        lost = {
            "stale": 1.0 - dm / mm if mm else None,
            "noise": max(0.0, dd - dm * dm / mm) / mm if mm else None,
            "er": error / error_before if error_before else None,
        }
        if self._directions:
            lost["stale_direction"] = 1.0 - turned / mm if mm else None
        return lost

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


def by_direction(model: nn.Module) -> frozenset[str]:
    """Parameters that count by their direction alone: convolutions with a batch norm beside them, by names.

    Example:
        >>> block = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8))
        >>> sorted(by_direction(nn.ModuleDict({"block": block, "head": nn.Linear(8, 2)})))
        ['block.0.weight']
    """
    hints = Hints(roles=dict.fromkeys((name for name, _ in model.named_buffers()), "exact"))
    return frozenset(name for name, tensor in model.named_parameters() if keeps_norm(name, tensor, hints))


def _as_long(got: Tensor, live: Tensor) -> Tensor:
    """``got``, its part along ``live`` as long as that; as it is where it does not point that way."""
    along = _dot(got, live)
    return got * (_dot(live, live) / along) if along > 0 else got


def _dot(a: Tensor, b: Tensor) -> float:
    return float(torch.dot(a.flatten(), b.flatten()))


def standard_error(found: Degradation, quality: Quality) -> float | None:
    """Of a degradation, as results tell it; None where there is none: of one value, or of an infinite one.

    Args:
        found: how much worse.
        quality: either side of the comparison; it has a value for each batch.

    Example:
        >>> standard_error(Degradation(0.1, 0.02), Quality((2.0, 3.0)))
        0.02
        >>> standard_error(Degradation(0.1), Quality((2.0,))) is None
        True
    """
    known = len(quality.values) > 1 and math.isfinite(found.mean) and math.isfinite(found.se)
    return found.se if known else None
