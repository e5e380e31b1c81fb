"""A context that puts back what an evaluation may change: random streams, training modes, tensors, memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from dynaquant_core.handlers import by_handler
from dynaquant_core.training.attributes import Attributes
from dynaquant_core.training.held import Held
from dynaquant_core.training.rng import put_rng_back, rng_state

__all__ = ["insist", "untouched", "written_in_passing"]


#: Modules that may write their weights in a forward pass.
EMBEDDINGS = (nn.Embedding, nn.EmbeddingBag)

#: A module whose dictionaries are views of something else.
SCRIPTED = torch.jit.ScriptModule


@dataclass(frozen=True, slots=True)
class _Buffers:
    """One module's buffers: the objects themselves, where they lie in memory, and a copy of their values."""

    module: nn.Module
    tensors: dict[str, Tensor | None]
    values: list[Held]

    @classmethod
    def of(cls, module: nn.Module) -> _Buffers:
        tensors = dict(module._buffers)
        return cls(module, tensors, [Held.of(tensor) for tensor in tensors.values() if tensor is not None])

    def put_back(self) -> None:
        """The same tensor objects with the same bits; a buffer that was added meanwhile is dropped."""
        if not isinstance(self.module, SCRIPTED):  # its buffers cannot come or go
            self.module._buffers.clear()
            self.module._buffers.update(self.tensors)
        for held in self.values:
            held.put_back()


@dataclass(frozen=True, slots=True)
class _Parameters:
    """One module's parameters: the objects themselves, and the memory that each of them is a view of."""

    module: nn.Module
    tensors: dict[str, nn.Parameter | None]
    places: dict[str, Tensor]

    @classmethod
    def of(cls, module: nn.Module) -> _Parameters:
        tensors = dict(module._parameters)
        plain = {name: tensor for name, tensor in tensors.items() if tensor is not None and _is_plain(tensor)}
        places = {name: tensor.data for name, tensor in plain.items()}
        return cls(module, tensors, places)

    def put_back(self) -> None:
        """The same objects over the same memory, whose values are another's affair."""
        held = self.module._parameters
        if list(held) != list(self.tensors) or any(held[key] is not self.tensors[key] for key in held):
            held.clear()
            held.update(self.tensors)
        for name, place in self.places.items():
            tensor = self.tensors[name]
            if tensor is not None and not _is_same_memory(tensor, place):
                tensor.data = place


def _is_plain(tensor: Tensor) -> bool:
    """Whether a parameter's memory can be told and given back: no subclass of torch's has the last word."""
    return type(tensor) is nn.Parameter and tensor.layout == torch.strided


def _is_same_memory(tensor: Tensor, place: Tensor) -> bool:
    alike = tensor.dtype == place.dtype and tensor.device == place.device and tensor.shape == place.shape
    return alike and tensor.data_ptr() == place.data_ptr()


@contextmanager
def untouched(models: Iterable[nn.Module]) -> Iterator[None]:
    """Puts back every global random stream, every submodule's training mode and buffers, bit for bit.

    And tensors that are neither buffers nor parameters (`Attributes`), as weights that a hook works out.
    It does so however the body ends, and a Ctrl-C meanwhile is raised afterwards.  Buffers that were replaced
    by other tensors are replaced back, resized ones have their size again.  A module goes back to its mode by
    its own ``train``, which may have more to undo than a flag (LoRA unmerges).  Parameters lie in the memory
    that they lay in, also where the body moved or cast the model.

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
    written = [module for module in modules if not isinstance(module, SCRIPTED)]
    parameters = [_Parameters.of(module) for module in written]
    attributes = [Attributes.of(module) for module in written]
    streams = rng_state()

    def put_back() -> None:
        try:
            with torch.no_grad():
                for module, training in zip(modules, flags, strict=True):  # parents first: theirs is below
                    if module.training != training:
                        module.train(training)
                for module, training in zip(modules, flags, strict=True):  # some keep a part of them frozen
                    module.training = training
                for weights in parameters:
                    weights.put_back()
                for held in buffers:
                    held.put_back()
                for plain in attributes:
                    plain.put_back()
        finally:
            put_rng_back(streams)

    try:
        yield
    finally:
        insist(put_back)


def written_in_passing(models: Iterable[nn.Module]) -> list[nn.Parameter]:
    """Parameters that an evaluation without gradients may write.

    Those of modules with a ``train`` of their own, which changing to evaluation mode and back may round: LoRA
    adds its product to them there, and takes it out again.  And tables with a ``max_norm``, of which every
    pass shortens the rows that it reads.

    Example:
        >>> written_in_passing([nn.Linear(2, 2)])
        []
        >>> [tuple(weight.shape) for weight in written_in_passing([nn.Embedding(3, 2, max_norm=1.0)])]
        [(3, 2)]
    """
    own = [
        module
        for model in models
        for module in model.modules()
        if type(module).train is not nn.Module.train
        or type(module).eval is not nn.Module.eval
        or (isinstance(module, EMBEDDINGS) and module.max_norm is not None)
    ]
    return list({weight: None for module in own for weight in module.parameters() if _is_plain(weight)})


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
        except BaseException as error:
            if isinstance(error, Exception) and not by_handler(error):
                raise
            interruption = error  # raised below, when the work is done
    if interruption is not None:
        raise interruption
