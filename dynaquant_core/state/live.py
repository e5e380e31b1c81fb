"""Which weight a running optimizer's tensors belong to: by memory, where a state has the optimizer's own."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TypeVar

import torch
from torch import Tensor
from torch.optim import Optimizer

from dynaquant_core.state.memory import Address, address_of

__all__ = ["Live"]

T = TypeVar("T")

#: Where a tensor begins, and its shape.
Spot = tuple[Address, tuple[int, ...]]


class Live:
    """A run's optimizers and the weights in a state of it.

    Args:
        optimizers: that the state's tensors are of.
        weights: name -> tensor of the state.
        parameters: name -> parameter of the model, for a state that holds copies of its weights.
        ending: the weight that ends with a parameter's name.

    Example:
        >>> weight = torch.nn.Parameter(torch.ones(2))
        >>> adam = torch.optim.Adam([weight]); weight.grad = torch.ones(2); adam.step()
        >>> live = Live([adam], {"model.w": weight.detach()}, {}, {}.get)
        >>> live.owner(adam.state_dict()["state"][0])
        'model.w'
    """

    def __init__(
        self,
        optimizers: Iterable[Optimizer],
        weights: Mapping[str, Tensor],
        parameters: Mapping[str, Tensor],
        ending: Callable[[str], str | None],
    ) -> None:
        self._weights = _by_spot((tensor, name) for name, tensor in weights.items())
        self._names = {id(parameter): name for name, parameter in parameters.items()}
        self._ending = ending
        self._parameters = _by_spot(
            (value, parameter)
            for optimizer in optimizers
            for parameter, held in optimizer.state.items()
            if isinstance(held, Mapping) and isinstance(parameter, Tensor)
            for value in held.values()
        )

    def knows(self, held: Mapping[str, Tensor]) -> bool:
        """Whether these are tensors that one of the optimizers holds of a parameter."""
        return self._parameter(held) is not None

    def owner(self, held: Mapping[str, Tensor]) -> str | None:
        """The weight of the parameter that an optimizer holds these of; None: it is not in the state."""
        parameter = self._parameter(held)
        if parameter is None:
            return None
        owner = self._weights.get(spot) if (spot := _spot(parameter)) is not None else None
        if owner is None and id(parameter) in self._names:
            return self._ending(self._names[id(parameter)])
        return owner

    def _parameter(self, held: Mapping[str, Tensor]) -> Tensor | None:
        spots = (_spot(tensor) for tensor in held.values())
        return next((self._parameters[spot] for spot in spots if spot in self._parameters), None)


def _by_spot(items: Iterable[tuple[object, T]]) -> dict[Spot, T]:
    found: dict[Spot, T] = {}
    for tensor, value in items:
        spot = _spot(tensor)
        if spot is not None:
            found.setdefault(spot, value)
    return found


def _spot(tensor: object) -> Spot | None:
    """Where a tensor lies; None for what has no memory to be known by."""
    if type(tensor) not in (Tensor, torch.nn.Parameter) or not isinstance(tensor, Tensor):
        return None
    address = address_of(tensor)
    return (address, tuple(tensor.shape)) if address is not None else None
