"""Tensors that a module has as plain attributes: neither parameters nor buffers, set in its forward pass.

Old-style weight and spectral norm and pruning masks put the weight that they work out there
(`torch.nn.utils.weight_norm`, `torch.nn.utils.prune`), others a table that grows, or a count.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor, nn

from dynaquant_core.state import address_of
from dynaquant_core.training.held import Held

__all__ = ["Attributes"]

#: What every module has for itself.
OWN: Final = frozenset(vars(nn.Module()))

#: What may be said beside a tensor of what it holds: a length, a key, a flag.
BESIDE: Final = (int, float, complex, str, bytes, tuple, torch.dtype, torch.device, type(None))

#: Of larger ones (bytes) no values are copied: that would be the data, which are only read.
MOST: Final = 1 << 24


@dataclass(frozen=True, slots=True)
class Attributes:
    """One module's plain tensors, their values, and the numbers and texts beside them.

    Example:
        >>> layer = nn.utils.spectral_norm(nn.Linear(2, 2))
        >>> before, attributes = layer.weight, Attributes.of(layer)
        >>> out = layer(torch.ones(2))
        >>> layer.weight is before
        False
        >>> attributes.put_back()
        >>> layer.weight is before
        True
    """

    module: nn.Module
    tensors: dict[str, Tensor]
    values: list[Held]
    beside: dict[str, Any]

    @classmethod
    def of(cls, module: nn.Module) -> Attributes:
        """What the module has now."""
        own = {name: value for name, value in vars(module).items() if name not in OWN}
        tensors = _tensors(own)
        values = [Held.of(tensor) for tensor in tensors.values() if _is_copied(tensor)]
        return cls(module, tensors, values, {name: own[name] for name in own if _is_beside(own[name])})

    def put_back(self) -> None:
        """The same objects with the same bits; where some are others, the numbers beside them too.

        A table that was made anew and a length that says how far it goes belong together.  What was added
        meanwhile is dropped.  May be run again from its beginning, wherever it was interrupted.
        """
        held = vars(self.module)
        now = {name: id(tensor) for name, tensor in _tensors(held).items()}
        same = now == {name: id(tensor) for name, tensor in self.tensors.items()}
        if same and not any(value.changed for value in self.values):
            return
        for name, value in (self.beside | self.tensors).items():
            if held.get(name, self) is not value:
                setattr(self.module, name, value)  # a recurrent layer has a list of them to keep
        for name in now.keys() - self.tensors.keys() - self.beside.keys():
            delattr(self.module, name)
        for kept in self.values:
            kept.put_back()


def _tensors(attributes: dict[str, Any]) -> dict[str, Tensor]:
    return {name: value for name, value in attributes.items() if isinstance(value, Tensor)}


def _is_copied(tensor: Tensor) -> bool:
    """Whether its values can be copied and written again as those of any tensor."""
    return (
        type(tensor) is Tensor
        and address_of(tensor) is not None
        and not (tensor.is_quantized or tensor.is_inference())
        and tensor.nbytes <= MOST
    )


def _is_beside(value: Any) -> bool:
    return isinstance(value, BESIDE)
