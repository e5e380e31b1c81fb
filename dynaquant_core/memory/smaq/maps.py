"""Feature maps and their gradients, coded as they pass from layer to layer (SmaQ, sec. 4: its protocol).

A layer is a module without children.  With ``features`` its output is replaced by what was coded and decoded,
so that the next layer computes with that; the gradient passes as if it had not been.  With ``gradients`` the
gradient of its output is replaced when backward has made it; the gradient of that passes as well; what the
format would ruin is left alone (`Format.ruins`).  No memory is saved by either: this is how the publication
measured its formats.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from dynaquant_core.memory.smaq.batches import tensors_of
from dynaquant_core.memory.smaq.coder import Coder
from dynaquant_core.memory.smaq.packing import address
from dynaquant_core.memory.smaq.places import place_of_call
from dynaquant_core.memory.smaq.saved import is_own

__all__ = ["attach_maps"]


class _Settled(torch.autograd.Function):
    """The settled value forward, the gradient as it is backward."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, coder: Coder, role: str, place: str) -> Tensor:  # noqa: ARG004 - torch's way
        settled = coder.settle(tensor, role, place)
        # A clone is no view, so that a layer may write to it in place.
        return (tensor if settled is None else settled).clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:  # noqa: ARG004 - torch's way
        return gradients[0], None, None, None


def attach_maps(model: nn.Module, coder: Coder, *, features: bool, gradients: bool) -> list[Any]:
    """Hooks every layer; returns the hooks' handles."""
    layers = {module: name for name, module in model.named_modules() if not any(module.children())}
    names = {module: name for name, module in model.named_modules()}
    return [
        layer.register_forward_hook(_hook(layer, names, coder, features=features, gradients=gradients))
        for layer in layers
        if not isinstance(layer, nn.Identity)
    ]


def _hook(
    layer: nn.Module, names: dict[nn.Module, str], coder: Coder, *, features: bool, gradients: bool
) -> Callable[..., Any]:
    def passed(tensor: Tensor, seen: set[int], place: str) -> Tensor:
        if not coder.takes(tensor):
            return tensor
        if features and address(tensor) not in seen:  # a view of it was coded before
            tensor = _Settled.apply(tensor, coder, "map", place)  # type: ignore[no-untyped-call]
        # A leaf is a parameter or an input handed on: it outlives this pass, and so would a hook on it.
        if gradients and tensor.requires_grad and not tensor.is_leaf:
            tensor.register_hook(partial(_of_gradient, coder, place))  # type: ignore[no-untyped-call]
        return tensor

    def hook(module: nn.Module, args: Any, output: Any) -> Any:
        if not (is_own(module, layer) and module.training and torch.is_grad_enabled()):
            return None
        # One layer (a rectifier, say) may serve in several places.
        called = f"@{place_of_call(names, above=module)}" if coder.reuse else ""
        in_place = bool(getattr(module, "inplace", False))  # then its output is none of what was coded
        seen = set() if in_place else {address(tensor) for tensor in tensors_of(args)}
        place = names[layer] + called
        found = _mapped(output, lambda tensor, place: passed(tensor, seen, place), place)
        return found if features else None

    # A compiled model runs it between its graphs: nothing here can be part of one.
    return torch.compiler.disable(hook)  # type: ignore[no-untyped-call,no-any-return]


def _of_gradient(coder: Coder, place: str, gradient: Tensor) -> Tensor | None:
    """A coded gradient; with a graph where it has one, so that a penalty on gradients reaches the weights."""
    if gradient.requires_grad and coder.takes(gradient):
        return _Settled.apply(gradient, coder, "gradient map", place)  # type: ignore[no-untyped-call,no-any-return]
    return coder.settle(gradient, "gradient map", place)


def _mapped(tree: Any, function: Callable[[Tensor, str], Tensor], place: str) -> Any:
    """The tree with the function applied to its tensors; trees of unknown kinds stay as they are."""
    if isinstance(tree, Tensor):
        return function(tree, place)
    if type(tree) in (tuple, list):
        return type(tree)(_mapped(item, function, f"{place}.{index}") for index, item in enumerate(tree))
    if type(tree) is dict:
        return {key: _mapped(item, function, f"{place}.{key}") for key, item in tree.items()}
    return tree
