"""A context that puts back what an evaluation may change: random streams, training flags, buffers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from dynaquant_core.training.rng import put_rng_back, rng_state

__all__ = ["same_bits", "untouched"]


@dataclass(frozen=True, slots=True)
class _Buffers:
    """One module's buffers: the objects themselves and a copy of their values."""

    module: nn.Module
    tensors: dict[str, Tensor | None]
    values: dict[str, Tensor]

    @classmethod
    def of(cls, module: nn.Module) -> _Buffers:
        tensors = dict(module._buffers)
        values = {name: tensor.detach().clone() for name, tensor in tensors.items() if tensor is not None}
        return cls(module, tensors, values)

    def put_back(self) -> None:
        """The same tensor objects with the same bits; a buffer that was added meanwhile is dropped."""
        self.module._buffers.clear()
        self.module._buffers.update(self.tensors)
        for name, value in self.values.items():
            tensor = self.tensors[name]
            if tensor is not None and not same_bits(tensor, value):
                tensor.copy_(value)


@contextmanager
def untouched(models: Iterable[nn.Module]) -> Iterator[None]:
    """Puts back every global random stream, and every submodule's training flag and buffers, bit for bit.

    It does so however the body ends.  Buffers that were replaced by other tensors are replaced back.

    Args:
        models: the modules that the body may run, with all their submodules.

    Example:
        >>> norm = nn.BatchNorm1d(2)
        >>> with untouched([norm]):
        ...     out = norm(torch.randn(8, 2))
        ...     mode = norm.eval()
        >>> norm.training, norm.running_mean.tolist()
        (True, [0.0, 0.0])
    """
    modules = list({module: None for model in models for module in model.modules()})
    flags = [module.training for module in modules]
    buffers = [_Buffers.of(module) for module in modules]  # those without any too: some may be added
    streams = rng_state()
    try:
        yield
    finally:
        for module, training in zip(modules, flags, strict=True):
            module.training = training
        with torch.no_grad():
            for held in buffers:
                held.put_back()
        put_rng_back(streams)


def same_bits(left: Tensor, right: Tensor) -> bool:
    """Whether two tensors of one shape and dtype hold the same bits (so NaN equals NaN, -0 is not 0)."""
    if left.layout != torch.strided or right.layout != torch.strided:
        return False
    return torch.equal(_bytes(left), _bytes(right))


def _bytes(tensor: Tensor) -> Tensor:
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8)
