"""A context that puts back what an evaluation may change: random streams, training flags, buffers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from dynaquant_core.training.rng import put_rng_back, rng_state

__all__ = ["insist", "same_bits", "untouched", "write"]


@dataclass(frozen=True, slots=True)
class _Buffers:
    """One module's buffers: the objects themselves, where they lie in memory, and a copy of their values."""

    module: nn.Module
    tensors: dict[str, Tensor | None]
    places: dict[str, Tensor]
    values: dict[str, Tensor]

    @classmethod
    def of(cls, module: nn.Module) -> _Buffers:
        tensors = dict(module._buffers)
        places = {name: tensor.detach() for name, tensor in tensors.items() if tensor is not None}
        values = {name: place.clone() for name, place in places.items()}
        return cls(module, tensors, places, values)

    def put_back(self) -> None:
        """The same tensor objects with the same bits; a buffer that was added meanwhile is dropped."""
        self.module._buffers.clear()
        self.module._buffers.update(self.tensors)
        for name, value in self.values.items():
            tensor = self.tensors[name]
            if tensor is None:
                continue
            if tensor.shape != value.shape:  # resized in place
                tensor.data = self.places[name]
            if not same_bits(tensor, value):
                write(tensor, value)


@contextmanager
def untouched(models: Iterable[nn.Module]) -> Iterator[None]:
    """Puts back every global random stream, and every submodule's training flag and buffers, bit for bit.

    It does so however the body ends, and a Ctrl-C meanwhile is raised afterwards.  Buffers that were replaced
    by other tensors are replaced back, resized ones have their size again.

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

    def put_back() -> None:
        for module, training in zip(modules, flags, strict=True):
            module.training = training
        with torch.no_grad():
            for held in buffers:
                held.put_back()
        put_rng_back(streams)

    try:
        yield
    finally:
        insist(put_back)


def insist(action: Callable[[], None]) -> None:
    """Runs ``action`` until it has run whole: what a signal raises in it (Ctrl-C) is raised afterwards.

    Args:
        action: may be run again from its beginning; an ordinary exception of it is raised at once.
    """
    interruption: BaseException | None = None
    while True:
        try:
            action()
            break
        except Exception:
            raise
        except BaseException as error:  # noqa: BLE001 - raised below, when the work is done
            interruption = error
    if interruption is not None:
        raise interruption


def write(target: Tensor, value: Tensor) -> None:
    """Copies ``value`` into ``target``; where `Tensor.expand` gave many elements one place, the first counts.

    Example:
        >>> rows = torch.zeros(1, 2).expand(3, 2)
        >>> write(rows, torch.ones(3, 2))
        >>> rows.sum().item()
        6.0
    """
    if target.layout == torch.strided:
        for dim, (size, stride) in enumerate(zip(target.shape, target.stride(), strict=True)):
            if stride == 0 and size > 1:  # torch refuses to write there
                target, value = target.narrow(dim, 0, 1), value.narrow(dim, 0, 1)
    target.copy_(value)


def same_bits(left: Tensor, right: Tensor) -> bool:
    """Whether two tensors of one shape and dtype hold the same bits (so NaN equals NaN, -0 is not 0)."""
    if left.layout != torch.strided or right.layout != torch.strided:
        return False
    return torch.equal(_bytes(left), _bytes(right))


def _bytes(tensor: Tensor) -> Tensor:
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8)
