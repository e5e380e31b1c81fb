"""How far training has moved the weights, and how much of that a checkpoint would lose, on a sample of them.

What a restore costs is movement that was not stored (stale), not error.  To know it takes the weights that
this life of the training began from.  A copy of them all would be one more model in memory; so up to `SAMPLE`
weights all over them are kept: 4 MB, for a standard error of stale of about sqrt(noise / SAMPLE), below
0.006 where noise is 30.  A search decodes every candidate that it measures; the sample is taken in passing.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TypeGuard

import torch
from torch import Tensor
from torch.nn.parameter import is_lazy
from torch.optim import Optimizer

from dynaquant_core.quantize.flat import FLOATS
from dynaquant_core.quantize.lattice.scattered import scattered
from dynaquant_core.search.quality import Lost
from dynaquant_core.state import address_of

__all__ = ["SAMPLE", "Movement", "Passing", "Start", "place_of", "places_of"]

#: At most about so many weights are looked at, and at least about so many of a tensor.
SAMPLE, LEAST = 1 << 20, 1 << 7


@dataclass(frozen=True, slots=True)
class Start:
    """A sample of the weights that a life began from.

    Args:
        values: name -> float32[n] on the CPU.
        stride: one weight of a tensor in so many; of small tensors more are taken (`_every`).
        trained: names of those that an optimizer trains.
    """

    values: Mapping[str, Tensor]
    stride: int
    trained: frozenset[str] = frozenset()

    @classmethod
    def sampled(cls, tensors: Mapping[str, object]) -> Start:
        """A sample of those that are floating tensors of one dimension and more."""
        weights = {name: tensor for name, tensor in tensors.items() if _has_weights(tensor)}
        stride = max(1, -(-sum(tensor.numel() for tensor in weights.values()) // SAMPLE))
        values = {name: _sampled(tensor, stride) for name, tensor in weights.items()}
        return cls(values, stride)


class Movement:
    """What the candidates of one save would lose.

    Args:
        start: of this life.
        live: name -> the true weights; looked at now, and not kept.

    Example:
        >>> movement = Movement(Start({"w": torch.zeros(2)}, 1), {"w": torch.tensor([[2.0, 0.0]])})
        >>> passing = movement.watch([("w", torch.tensor([[1.5, 1.0]]))])
        >>> [name for name, _ in passing], passing.lost
        (['w'], Lost(stale=0.25, noise=0.25))
    """

    def __init__(self, start: Start, live: Mapping[str, Tensor]) -> None:
        self._start = start
        now = {name: _sampled(tensor, start.stride) for name, tensor in live.items() if name in start.values}
        fits = {name: values for name, values in now.items() if values.shape == start.values[name].shape}
        moved = {name: values - start.values[name] for name, values in fits.items()}
        self._far = {name: _in_spreads(values, fits[name]) for name, values in moved.items()}
        self._moved = {name: values for name, values in moved.items() if live[name].dim() > 1}

    @property
    def moved(self) -> dict[str, float]:
        """How far each tensor that an optimizer trains has moved, in spreads of its values."""
        return {name: far for name, far in self._far.items() if name in self._start.trained}

    def watch(self, decoded: Iterable[tuple[str, Tensor]]) -> Passing:
        """A candidate's tensors, looked at as they are taken."""
        return Passing(decoded, self._start, self._moved)


class Passing:
    """Decoded tensors on their way into an evaluation.

    Attributes:
        lost: of the movement, once the last tensor was taken; None before, and where nothing has moved and
            nothing differs.  What differs where nothing has moved is infinitely much noise.
    """

    def __init__(
        self, decoded: Iterable[tuple[str, Tensor]], start: Start, moved: Mapping[str, Tensor]
    ) -> None:
        self.lost: Lost | None = None
        self._decoded = decoded
        self._start = start
        self._moved = moved

    def __iter__(self) -> Iterator[tuple[str, Tensor]]:
        mm = dm = dd = 0.0
        for name, tensor in self._decoded:
            if name in self._moved:
                known = self._moved[name].isfinite()
                moved = self._moved[name][known].double()
                taken = (_sampled(tensor, self._start.stride) - self._start.values[name])[known].double()
                weight = _every(tensor, self._start.stride) / self._start.stride
                mm += weight * float(moved @ moved)
                dm += weight * float(taken @ moved)
                dd += weight * float(taken @ taken)
            yield name, tensor
        if mm:
            self.lost = Lost(1.0 - dm / mm, max(0.0, dd - dm * dm / mm) / mm)
        elif dd:
            self.lost = Lost(0.0, math.inf)


def _has_weights(tensor: object) -> TypeGuard[Tensor]:
    """Whether it is a tensor with values to follow; one that no file takes is for the save to refuse."""
    if not isinstance(tensor, Tensor) or is_lazy(tensor) or tensor.is_meta:
        return False
    if tensor.is_nested or tensor.layout != torch.strided or tensor.dtype not in FLOATS:
        return False
    return tensor.dim() >= 1


def places_of(optimizers: Iterable[Optimizer]) -> frozenset[object]:
    """Where the parameters of some optimizers lie (`place_of`)."""
    groups = [group for optimizer in optimizers for group in optimizer.param_groups]
    places = (place_of(parameter) for group in groups for parameter in group["params"])
    return frozenset(place for place in places if place is not None)


def place_of(value: object) -> object:
    """What tells a tensor from others, views of one memory too; None: it has none of its own."""
    address = address_of(value)
    return (address, value.shape) if address is not None and isinstance(value, Tensor) else None


def _every(tensor: Tensor, stride: int) -> int:
    """One weight of a tensor is taken in so many: the stride or less."""
    return min(stride, max(1, tensor.numel() // LEAST))


def _sampled(tensor: Tensor, stride: int) -> Tensor:
    """One value in `_every`, in all columns and taps, as float32 on the CPU; a copy."""
    flat, every = tensor.detach().flatten(), _every(tensor, stride)
    if every > 1:
        flat = flat[scattered(flat.numel(), -(-flat.numel() // every)).to(flat.device)]
    return flat.to("cpu", torch.float32, copy=True)


def _in_spreads(moved: Tensor, now: Tensor) -> float:
    """Root mean square of a movement over the spread of the values; 0 where these have none.

    What is not finite counts as not there: a mask of infinities, or memory that nobody had filled.
    """
    known = moved.isfinite()
    moved, now = moved[known].double(), now[known].double()
    spread = float(now.std(correction=0)) if now.numel() else 0.0
    return float(moved.square().mean().sqrt()) / spread if spread > 0 else 0.0
