"""What the optimizer's ``state_dict`` holds of SAMO: the mask once, one bit a weight, and theta32.

It lies in the optimizer's own state, so whatever saves that saves it: `torch.save`, `Checkpointer`, a
framework.  Parameters are called "samo.0", "samo.1", ... in it instead of 0, 1, ..., so that a state says
what it is of: torch asks for no names and gives vectors to a dense optimizer as the moments of its matrices,
which `Checkpointer` refuses before and `samo.wrap` after.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor

from dynaquant_core.errors import StateMismatchError
from dynaquant_core.memory.samo.engine import Engine
from dynaquant_core.memory.samo.places import bits_of, flat_view, index_of
from dynaquant_core.memory.samo.slots import Slot

__all__ = ["KEY", "Stored", "from_state", "numbered", "to_state"]

#: Where it lies in an optimizer's state_dict.
KEY: Final = "samo"

_PREFIX: Final = "samo."

#: What it holds of a layer.
LAYER: Final = frozenset({"name", "dtype", "shape", "stride", "bits", "theta32"})

#: Whoever loads a run gives a model its weights first.
LEFT: Final = (
    "The optimizer was left as it was, and so were weights that were not loaded into the model before."
)


@dataclass(frozen=True, slots=True)
class Stored:
    """What a state holds, checked against the model.

    Args:
        active: whether the model is pruned (False: an early-bird ticket is still awaited).
        masks: bool, by parameter name.
        theta32: float32, by parameter name; in the masters' shapes under ``masks``.
        pruner: the pruner's own state; None: it has none.
    """

    active: bool
    masks: dict[str, Tensor]
    theta32: dict[str, Tensor]
    pruner: Mapping[str, Any] | None


def to_state(engine: Engine, state: Mapping[str, Any], *, active: bool, pruner: Any) -> dict[str, Any]:
    """An optimizer's ``state_dict`` with all that SAMO needs; its tensors are the live ones."""
    layers = [_layer(slot) for slot in engine.slots if not slot.own]
    return {
        **state,
        "state": {
            f"{_PREFIX}{key}" if isinstance(key, int) else key: one for key, one in state["state"].items()
        },
        "param_groups": [
            {**group, "params": [f"{_PREFIX}{number}" for number in group["params"]]}
            for group in state["param_groups"]
        ],
        KEY: {"format": 1, "active": active, "pruner": pruner, "layers": layers},
    }


def _layer(slot: Slot) -> dict[str, Any]:
    bits = None if slot.index is None else bits_of(slot.index, slot.param.numel())
    return {
        "name": slot.name,
        "dtype": _short(slot.param.dtype),
        "shape": list(slot.param.shape),
        "stride": list(slot.param.stride()),
        "bits": bits,
        "theta32": slot.master.detach(),
    }


def numbered(state: Mapping[str, Any]) -> dict[str, Any]:
    """Undoes the names of `to_state`, for the optimizer's own ``load_state_dict``."""
    return {
        **{key: value for key, value in state.items() if key != KEY},
        "state": {_number(key): one for key, one in state["state"].items()},
        "param_groups": [
            {**group, "params": [_number(key) for key in group["params"]]} for group in state["param_groups"]
        ],
    }


def _number(key: Any) -> Any:
    return int(key.removeprefix(_PREFIX)) if isinstance(key, str) and key.startswith(_PREFIX) else key


def from_state(engine: Engine, state: Mapping[str, Any]) -> Stored:
    """Reads what `to_state` gave; nothing is changed.

    Raises:
        StateMismatchError: it is a dense optimizer's, or another model's, or broken.
    """
    found = state.get(KEY)
    if not isinstance(found, Mapping) or found.get("format") != 1:
        raise StateMismatchError(
            "samo: the optimizer's state holds no mask: it was saved without SAMO, or by a newer version; "
            f"load a dense state before samo.wrap, which compresses it. {LEFT}"
        )
    _require_whole(found)
    slots = {slot.name: slot for slot in engine.slots}
    masks: dict[str, Tensor] = {}
    theta32: dict[str, Tensor] = {}
    for layer in found["layers"]:
        name = layer["name"]
        slot = slots.get(name)
        _require_same(layer, slot)
        assert slot is not None
        if layer["bits"] is not None:
            masks[name] = _mask(layer, slot)
        theta32[name] = _theta32(layer, slot, masks.get(name))
    _require_all(theta32, engine)
    _require_groups(engine, state)
    return Stored(bool(found["active"]), masks, theta32, found["pruner"])


def _require_whole(found: Mapping[str, Any]) -> None:
    """Refuses a state of which something is gone, or was made something else."""
    layers = found.get("layers")
    whole = isinstance(layers, list | tuple) and "active" in found and "pruner" in found
    if not whole or any(not isinstance(one, Mapping) or not one.keys() >= LAYER for one in layers or ()):
        raise StateMismatchError(
            "samo: the optimizer's state is broken: it should hold 'active', 'pruner' and, for each layer, "
            f"{', '.join(sorted(LAYER))}; take another checkpoint. {LEFT}"
        )


def _require_same(layer: Mapping[str, Any], slot: Slot | None) -> None:
    if slot is None:
        raise StateMismatchError(
            f"samo: the state holds layer {layer['name']!r}, which is not trained here; build the model "
            f"and the optimizer as they were built then. {LEFT}"
        )
    now = _short(slot.param.dtype), list(slot.param.shape), list(slot.param.stride())
    was = layer["dtype"], list(layer["shape"]), list(layer["stride"])
    if was[:2] != now[:2] or _long(was[1], was[2]) != _long(now[1], now[2]):
        raise StateMismatchError(
            f"samo: layer {slot.name!r} was {was[0]} {was[1]} with strides {was[2]} and is {now[0]} "
            f"{now[1]} with strides {now[2]}; build and wrap the model as it was then. {LEFT}"
        )


def _long(shape: list[int], strides: list[int]) -> list[int]:
    """Strides of dimensions of more than one element, which say in which order memory runs."""
    return [stride for size, stride in zip(shape, strides, strict=True) if size > 1]


def _mask(layer: Mapping[str, Any], slot: Slot) -> Tensor:
    size = slot.param.numel()
    bits = layer["bits"]
    if not isinstance(bits, Tensor) or bits.dtype != torch.uint8 or bits.numel() != -(-size // 8):
        raise StateMismatchError(
            f"samo: the stored mask of {slot.name!r} is not uint8[{-(-size // 8)}]; take another checkpoint. "
            f"{LEFT}"
        )
    marks = np.unpackbits(bits.cpu().numpy(), count=size).astype(np.bool_)
    mask = torch.empty_strided(slot.param.shape, slot.param.stride(), dtype=torch.bool, device="cpu")
    flat_view(mask).copy_(torch.from_numpy(marks))
    return mask.to(slot.param.device)


def _theta32(layer: Mapping[str, Any], slot: Slot, mask: Tensor | None) -> Tensor:
    values = layer["theta32"]
    expected = list(slot.param.shape) if mask is None else [index_of(mask, slot.param).numel()]
    if not isinstance(values, Tensor) or list(values.shape) != expected or values.dtype != torch.float32:
        raise StateMismatchError(
            f"samo: the stored theta32 of {slot.name!r} is not float32{expected}, as its mask says; take "
            f"another checkpoint. {LEFT}"
        )
    return values


def _require_groups(engine: Engine, state: Mapping[str, Any]) -> None:
    """The optimizer looks at its groups too, but when masks and weights have been put back."""
    was = [len(group["params"]) for group in state["param_groups"]]
    now = [len(group["params"]) for group in engine.optimizer.param_groups]
    if was != now:
        raise StateMismatchError(
            f"samo: the state is of an optimizer with groups of {was} parameters, this one has {now}; build "
            f"the optimizer as it was then. {LEFT}"
        )


def _require_all(theta32: Mapping[str, Tensor], engine: Engine) -> None:
    """Where every layer has a theta32 of its own, whatever its mask, the state must hold all of them."""
    lacking = [slot.name for slot in engine.slots if engine.copies and slot.name not in theta32]
    if lacking:
        raise StateMismatchError(
            f"samo: the state holds no theta32 of {', '.join(map(repr, lacking[:5]))}; build and wrap the "
            f"model as it was then. {LEFT}"
        )


def _short(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
