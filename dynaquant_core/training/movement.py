"""How much of training's movement a checkpoint would lose, estimated on a sample of the weights.

What a restore costs is movement that was not stored (stale), not error.  To know it takes the weights that
this life of the training began from.  A copy of them all would be one more model in memory; so up to `SAMPLE`
weights at even distances are kept: 4 MB, for a standard error of stale of about sqrt(noise / SAMPLE), below
0.006 where noise is 30.  A search decodes every candidate that it measures; the sample is taken in passing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TypeGuard

import torch
from torch import Tensor
from torch.nn.parameter import is_lazy

from dynaquant_core.search.quality import Lost
from dynaquant_core.training.capture import model_state
from dynaquant_core.training.subject import Subject

__all__ = ["SAMPLE", "Movement", "Passing", "Start"]

#: At most about so many weights are looked at.
SAMPLE = 1 << 20


@dataclass(frozen=True, slots=True)
class Start:
    """A sample of the weights that a life began from.

    Args:
        values: name in the captured tree -> float32[n] on the CPU.
        stride: every so manieth weight of a tensor; odd, so that it meets every column of a matrix.
    """

    values: Mapping[str, Tensor]
    stride: int

    @classmethod
    def of(cls, subject: Subject) -> Start:
        """The live weights of a run, under the names that `capture` gives them."""
        return cls.sampled(
            {
                f"model.{key}.{name}" if key else f"model.{name}": tensor
                for key, model in subject.models.items()
                for name, tensor in model_state(model).items()
            }
        )

    @classmethod
    def sampled(cls, tensors: Mapping[str, object]) -> Start:
        """A sample of those that are floating tensors of two dimensions and more."""
        weights = {name: tensor for name, tensor in tensors.items() if _has_weights(tensor)}
        stride = -(-sum(tensor.numel() for tensor in weights.values()) // SAMPLE) | 1
        return cls({name: _sampled(tensor, stride) for name, tensor in weights.items()}, stride)


class Movement:
    """What the candidates of one save would lose.

    Args:
        start: of this life.
        live: name -> the true weights; looked at now, and not kept.

    Example:
        >>> movement = Movement(Start({"w": torch.zeros(2)}, 1), {"w": torch.tensor([2.0, 0.0])})
        >>> passing = movement.watch([("w", torch.tensor([1.5, 1.0]))])
        >>> [name for name, _ in passing], passing.lost
        (['w'], Lost(stale=0.25, noise=0.25))
    """

    def __init__(self, start: Start, live: Mapping[str, Tensor]) -> None:
        self._start = start
        now = {name: _sampled(tensor, start.stride) for name, tensor in live.items() if name in start.values}
        fits = {name: values for name, values in now.items() if values.shape == start.values[name].shape}
        self._moved = {name: values - start.values[name] for name, values in fits.items()}

    def watch(self, decoded: Iterable[tuple[str, Tensor]]) -> Passing:
        """A candidate's tensors, looked at as they are taken."""
        return Passing(decoded, self._start, self._moved)


class Passing:
    """Decoded tensors on their way into an evaluation.

    Attributes:
        lost: of the movement, once the last tensor was taken; None before, and where nothing moved.
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
                moved = self._moved[name].double()
                taken = (_sampled(tensor, self._start.stride) - self._start.values[name]).double()
                mm += float(moved @ moved)
                dm += float(taken @ moved)
                dd += float(taken @ taken)
            yield name, tensor
        if mm:
            self.lost = Lost(1.0 - dm / mm, max(0.0, dd - dm * dm / mm) / mm)


def _has_weights(tensor: object) -> TypeGuard[Tensor]:
    if not isinstance(tensor, Tensor) or is_lazy(tensor) or tensor.is_meta:
        return False
    return tensor.is_floating_point() and tensor.dim() >= 2


def _sampled(tensor: Tensor, stride: int) -> Tensor:
    """Every ``stride``-th value, as float32 on the CPU; a copy."""
    flat = tensor.detach().flatten()[::stride]
    return flat.to("cpu", torch.float32, copy=True)
