"""Looks at the tensors of a save, each taken once a save, whatever the number of drafts."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Mapping

import torch
from torch import Tensor

from dynaquant_core.methods.base import Hints
from dynaquant_core.methods.lattice.bound import Bound
from dynaquant_core.methods.lattice.zeros import zero_share
from dynaquant_core.quantize.flat import flatten
from dynaquant_core.quantize.lattice import TensorStat, spread
from dynaquant_core.threads import map_threads

__all__ = ["LOOK", "found_once", "is_level", "stats_of", "those"]

#: Values of a tensor that are looked at before all of them are.
LOOK = 1 << 8


def those(holds: Callable[[str], bool], names: Iterable[str]) -> frozenset[str]:
    """The names of which something holds."""
    asked = list(names)
    return frozenset(name for name, yes in zip(asked, map_threads(holds, asked), strict=True) if yes)


def found_once(what: Hashable, hints: Hints, find: Callable[[], frozenset[str]]) -> frozenset[str]:
    """Looks once a save for ``what``, whatever the number of drafts."""
    key = ("lattice", what)
    if key not in hints.scratch:
        hints.scratch[key] = find()
    names: frozenset[str] = hints.scratch[key]
    return names


def is_level(tensor: Tensor) -> bool:
    """Whether all values are equal: biases before training, frozen masks.

    In float32, where spreads are measured: what has none there has no step that would fit it.
    """
    flat = flatten(tensor)
    first = flat[:LOOK].to(torch.float32)
    return bool((first == first[:1]).all()) and bool((flat.to(torch.float32) == first[:1]).all())


def stats_of(state: Mapping[str, Tensor], hints: Hints, bound: Bound) -> dict[str, TensorStat]:
    """Measured once a save, whatever the number of drafts; put together once a bound."""
    measured: list[tuple[float, float | None]] | None = hints.scratch.get(("lattice", "measured"))
    if measured is None:
        spreads = map_threads(_spread, list(state.values()))
        measured = [(std, _fisher(name, hints)) for name, std in zip(state, spreads, strict=True)]
        hints.scratch["lattice", "measured"] = measured
    known: dict[str, TensorStat] | None = hints.scratch.get(("lattice", "stats", bound))
    if known is None:
        known = {
            name: TensorStat(tensor.numel(), std, fisher, tensor.dim() == 1, bound.of(name, tensor, hints))
            for (name, tensor), (std, fisher) in zip(state.items(), measured, strict=True)
        }
        hints.scratch["lattice", "stats", bound] = known
    return known


def _spread(tensor: Tensor) -> float:
    """Standard deviation, about, of what is not zero in a pruned tensor: steps are for those."""
    return spread(tensor) / math.sqrt(1.0 - zero_share(tensor))


def _fisher(name: str, hints: Hints) -> float | None:
    """Mean squared gradient: the optimizer's own, else of the gradient's average."""
    if name in hints.fisher:
        return hints.fisher[name]
    gradient = hints.gradients.get(name)
    return None if gradient is None else float(gradient.detach().double().square().mean())
