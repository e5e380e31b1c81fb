"""A model in half precision: parameters, buffers, what goes in and what comes out.

As mixed precision is usually done: batch norms, whose running statistics need the range, stay in float32;
floating inputs are cast to the model's dtype on the way in and outputs to float32 on the way out.

Buffers are constants as a rule (masks, frequencies), and somebody wants them back: their originals are kept.
A finite value beyond the dtype, in a buffer or given to the model, such as a mask's -1e9 in float16, is its
largest value, not infinity, of which a row of nothing else would make NaN; left in float32 it would make
float32 of what it meets, and the next product would refuse that.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils.hooks import RemovableHandle

from dynaquant_core.state import bytes_of

__all__ = ["Cast", "cast_tree", "narrowed"]


def cast_tree(tree: Any, dtype: torch.dtype) -> Any:
    """Floating tensors of lists, tuples and plain dictionaries, `narrowed`; everything else as it is.

    Example:
        >>> cast_tree({"x": torch.zeros(1), "n": 3}, torch.float16)
        {'x': tensor([0.], dtype=torch.float16), 'n': 3}
    """
    if isinstance(tree, Tensor):
        return narrowed(tree, dtype) if tree.is_floating_point() else tree
    if type(tree) is dict:
        return {key: cast_tree(value, dtype) for key, value in tree.items()}
    if type(tree) in (list, tuple):
        return type(tree)(cast_tree(value, dtype) for value in tree)
    if isinstance(tree, tuple) and hasattr(tree, "_fields"):
        return type(tree)(*(cast_tree(value, dtype) for value in tree))
    return tree


def narrowed(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    """A floating tensor in ``dtype``; what is finite stays finite.  A device is not waited for.

    Example:
        >>> narrowed(torch.tensor([-1e9, -float("inf"), 0.5]), torch.float16).tolist()
        [-65504.0, -inf, 0.5]
    """
    cast, largest = tensor.to(dtype), torch.finfo(dtype).max
    if torch.finfo(tensor.dtype).max <= largest or tensor.layout != torch.strided or tensor.is_nested:
        return cast
    return torch.where(tensor.isinf(), cast, cast.clamp(-largest, largest))


class Cast:
    """Turns a model's floating tensors into ``dtype``, and back.

    Args:
        model: changed in place; its parameters stay the same objects, so tied ones stay tied; so do buffers.
        dtype: of everything but batch norms.
    """

    def __init__(self, model: nn.Module, dtype: torch.dtype) -> None:
        self._model = model
        self._parameters: list[tuple[nn.Parameter, torch.dtype]] = []
        self._buffers: list[tuple[nn.Module, str, Tensor]] = []
        self._handles: list[RemovableHandle] = []
        try:
            self._turn(dtype)
        except BaseException:  # no memory for one of them
            self.undo()
            raise
        if dtype != torch.float32:
            # No bound methods: a deep copy of the model must not copy what is behind them.
            before, after = partial(_cast_in, dtype), partial(_cast_out)
            self._handles = [
                model.register_forward_pre_hook(before, with_kwargs=True),
                model.register_forward_hook(after),
            ]

    def undo(self) -> None:
        """Everything as it was, but for what rounding took of parameters and of written buffers."""
        for handle in self._handles:
            handle.remove()
        for parameter, dtype in self._parameters:
            parameter.data = parameter.data.to(dtype)
        back: dict[Tensor, Tensor] = {}
        for module, name, original in self._buffers:
            buffer = module._buffers.get(name)
            if buffer is not None:
                if buffer not in back:  # modules that share a buffer go on sharing it
                    back[buffer] = original if _unwritten(buffer, original) else buffer.to(original.dtype)
                module._buffers[name] = back[buffer]

    def _turn(self, dtype: torch.dtype) -> None:
        for parameter in _outside_batch_norms(self._model):
            if parameter.is_floating_point() and parameter.dtype != dtype:
                self._parameters.append((parameter, parameter.dtype))
                parameter.data = narrowed(parameter.data, dtype)
        cast: dict[Tensor, Tensor] = {}
        for module in self._model.modules():
            for name, buffer in () if isinstance(module, _BatchNorm) else list(module._buffers.items()):
                if buffer is not None and buffer.is_floating_point() and buffer.dtype != dtype:
                    self._buffers.append((module, name, buffer))
                    if buffer not in cast:
                        cast[buffer] = narrowed(buffer, dtype)
                    module._buffers[name] = cast[buffer]


def _unwritten(buffer: Tensor, original: Tensor) -> bool:
    """Whether a buffer still says what its original did: by its bits, for loading a state writes the same."""
    if buffer.shape != original.shape or buffer.device != original.device:
        return False
    # A state from before the model was wrapped writes infinities.
    found, casts = bytes_of(buffer), (narrowed(original, buffer.dtype), original.to(buffer.dtype))
    return any(torch.equal(found, bytes_of(cast)) for cast in casts)


def _outside_batch_norms(model: nn.Module) -> Iterator[nn.Parameter]:
    seen = {
        parameter
        for module in model.modules()
        if isinstance(module, _BatchNorm)
        for parameter in module.parameters()
    }
    for parameter in model.parameters():
        if parameter not in seen:
            yield parameter


def _cast_in(dtype: torch.dtype, _: nn.Module, args: Any, kwargs: Any) -> tuple[Any, Any]:
    return cast_tree(args, dtype), cast_tree(kwargs, dtype)


def _cast_out(_: nn.Module, __: Any, output: Any) -> Any:
    return cast_tree(output, torch.float32)
