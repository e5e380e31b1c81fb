"""The optimizer's side: the same object over compressed parameters, its moments where weights are kept."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import product
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from dynaquant_core.config import require
from dynaquant_core.memory.samo.slots import Slot
from dynaquant_core.memory.samo.stepped import inside, require_none_inside, states_of
from dynaquant_core.state.sharded import is_sharded

__all__ = [
    "moments_of",
    "recast",
    "remembered",
    "require_movable",
    "require_optimizer",
    "swap_in",
    "swap_out",
]

#: What an optimizer remembers, by parameter.
States = dict[Any, Any]

#: What optimizers count with: one number whatever the parameter's shape, and in float32.
COUNTS: Final = frozenset({"step", "mu_product", "eta", "mu"})


def require_optimizer(optimizer: Optimizer, parameters: Mapping[str, nn.Parameter]) -> list[str]:
    """Names of the parameters that the optimizer trains: those in its groups that need gradients.

    Args:
        optimizer: any that steps each weight by itself.
        parameters: the model's, by name.

    Raises:
        ConfigError: no optimizer, or one around another that would step something else; its parameters are
            not the model's; it needs matrices or sparse gradients;
            it keeps something that is not one value a weight.
    """
    require(
        isinstance(optimizer, Optimizer),
        f"samo: optimizer is {type(optimizer).__name__}, expected torch.optim.Optimizer.",
    )
    require(
        hasattr(optimizer, "_optimizer_step_pre_hooks"),
        f"samo: {type(optimizer).__name__} wraps an optimizer and calls no hooks itself; wrap the model with "
        "the one inside (Accelerate: .optimizer).",
    )
    require(
        not is_sharded(optimizer),
        f"samo: {type(optimizer).__name__} keeps weights and states of some parameters on each rank, where "
        "compressed ones cannot be put; train with the optimizer inside it: SAMO averages gradients itself.",
    )
    require_none_inside(optimizer)
    refused = (torch.optim.SparseAdam, *((torch.optim.Muon,) if hasattr(torch.optim, "Muon") else ()))
    require(
        not isinstance(optimizer, refused),
        f"samo: {type(optimizer).__name__} needs matrices or sparse gradients, and a compressed layer is "
        "a vector.",
    )
    names: dict[Tensor, str] = {parameter: name for name, parameter in parameters.items()}
    held = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    strange = sum(parameter not in names for parameter in held)
    require(
        strange == 0,
        f"samo: {strange} of the optimizer's {len(held)} parameters are not the model's; wrap the model "
        "together "
        "with the optimizer that was built on its parameters.",
    )
    trained = [names[parameter] for parameter in held if parameter.requires_grad]
    require(
        bool(trained),
        "samo: the optimizer holds no parameter that needs gradients; there is nothing to train.",
    )
    for state in states_of(optimizer):
        for parameter, entry in state.items():
            if parameter in names:
                _require_state(names[parameter], parameter, entry)
    return [name for name in parameters if name in set(trained)]


def require_movable(optimizer: Optimizer, slots: Iterable[Slot]) -> None:
    """Refuses what cannot follow its weights to other places.

    LBFGS's directions are of all weights at once; Adafactor keeps rows and columns of a matrix and would not
    find them in what it has kept of a vector.

    Raises:
        ConfigError: the optimizer's state holds such a thing; nothing was changed.
    """
    again = "call optimizer.state.clear() first, and it begins anew from the weights; nothing was changed."
    states, factorises = states_of(optimizer), _factorises(optimizer)
    for slot, state in product(slots, states):
        entry = state.get(slot.master, {})
        strange = _strange(slot.master, entry)
        require(
            strange is None,
            f"samo: the optimizer's {strange!r} of {slot.name!r} is not one value a weight, so it cannot "
            f"follow its weights to another mask or back to the dense model; {again}",
        )
        require(
            not entry or slot.master.dim() == slot.param.dim() or not factorises,
            f"samo: what {type(optimizer).__name__} keeps of {slot.name!r} is that of a vector, of a dense "
            f"matrix it keeps rows and columns; {again}",
        )


def _factorises(optimizer: Optimizer) -> bool:
    """Whether it is an Adafactor, of torch or of anybody else: their states of matrices are others."""
    kinds = (kind for one in (optimizer, *inside(optimizer)) for kind in type(one).__mro__)
    return any(kind.__name__.lower().startswith("adafactor") for kind in kinds)


def _require_state(name: str, parameter: Tensor, entry: Mapping[str, Any]) -> None:
    strange = _strange(parameter, entry)
    value = entry[strange] if strange is not None else None
    if isinstance(value, Tensor) and value.dim() == 1 < parameter.dim():
        advice = "it looks like a state that was saved under samo.wrap: wrap first, then load it"
    else:
        advice = "wrap before the first step"
    require(
        strange is None,
        f"samo: the optimizer's {strange!r} of {name!r} is not one value a weight, so it cannot be "
        f"compressed; {advice}.",
    )


def _strange(parameter: Tensor, entry: Mapping[str, Any]) -> str | None:
    """What of a parameter's state is neither one value a weight nor one for all."""
    for key, value in entry.items():
        flat = isinstance(value, int | float | bool | str | type(None)) or (
            isinstance(value, Tensor) and (value.numel() == 1 or value.shape == parameter.shape)
        )
        if not flat:
            return key
    return None


def swap_in(optimizer: Optimizer, slots: Iterable[Slot]) -> None:
    """Puts each slot's master in its parameter's place, with the state that it has at the places kept."""
    states = states_of(optimizer)
    for slot in slots:
        if slot.own:
            _recast(states, slot.param)
            continue
        for entry in _replace(optimizer, states, slot.param, slot.master):
            for key, value in entry.items():
                if _is_full(key, value, slot.param):
                    kept = slot.gather(value)
                    entry[key] = kept.to(_dtype(kept, slot.master), copy=True)
    _forget_sizes(optimizer)


def remembered(optimizer: Optimizer) -> Callable[[], None]:
    """What puts an optimizer's parameters and state back as they are now, undoing a `swap_in` or half of one.

    It holds what is there, and needs no memory to put it back.
    """
    groups = [list(group["params"]) for group in optimizer.param_groups]
    states = [(state, dict(state)) for state in states_of(optimizer)]

    def put_back() -> None:
        for group, params in zip(optimizer.param_groups, groups, strict=True):
            group["params"][:] = params
        for state, before in states:
            state.clear()
            state.update(before)
        _forget_sizes(optimizer)

    return put_back


def swap_out(optimizer: Optimizer, slots: Iterable[Slot], *, own_dtype: bool = True) -> None:
    """Undoes `swap_in`: dense state, zero where weights are pruned.

    With ``own_dtype`` moments get their parameter's dtype, as torch's optimizers have them; else they keep
    all bits, for a `swap_in` that follows.
    """
    states = states_of(optimizer)
    for slot in slots:
        if slot.own:
            if own_dtype:
                _recast(states, slot.param)
            continue
        for entry in _replace(optimizer, states, slot.master, slot.param):
            for key, value in entry.items():
                if _is_full(key, value, slot.master):
                    dtype = _dtype(value, slot.param) if own_dtype else value.dtype
                    dense = torch.zeros_like(slot.param, dtype=dtype)
                    slot.spread(value, dense)
                    entry[key] = dense
    _forget_sizes(optimizer)


def recast(optimizer: Optimizer, slots: Iterable[Slot]) -> None:
    """Gives the moments of dense parameters their parameter's dtype; those that have it stay."""
    states = states_of(optimizer)
    for slot in slots:
        _recast(states, slot.param)


def _forget_sizes(optimizer: Optimizer) -> None:
    """LBFGS remembers how many weights there are."""
    if "_numel_cache" in vars(optimizer):
        vars(optimizer)["_numel_cache"] = None


def _recast(states: Sequence[States], parameter: nn.Parameter) -> None:
    """Gives moments the dtype that their parameter has got."""
    for entry in _renamed(states, parameter, parameter):
        for key, value in entry.items():
            if _is_full(key, value, parameter):
                entry[key] = value.to(_dtype(value, parameter))


def _dtype(value: Tensor, parameter: Tensor) -> torch.dtype:
    """Of a moment of the parameter; counts and flags keep theirs."""
    return parameter.dtype if value.is_floating_point() else value.dtype


def moments_of(optimizer: Optimizer, slot: Slot) -> list[Tensor]:
    """The optimizer's tensors that hold one value for each weight of a slot."""
    entries = [state.get(slot.master, {}) for state in states_of(optimizer)]
    return [value for entry in entries for key, value in entry.items() if _is_full(key, value, slot.master)]


def _is_full(key: str, value: Any, like: Tensor) -> bool:
    same = isinstance(value, Tensor) and value.shape == like.shape
    return same and (value.dim() > 0 or key not in COUNTS)


def _replace(
    optimizer: Optimizer, states: Sequence[States], old: nn.Parameter, new: nn.Parameter
) -> list[dict[str, Any]]:
    """Puts a parameter in another's place; gives what `_renamed` gives."""
    for group in optimizer.param_groups:
        group["params"][:] = [new if one is old else one for one in group["params"]]
    return _renamed(states, old, new)


def _renamed(states: Sequence[States], old: nn.Parameter, new: nn.Parameter) -> list[dict[str, Any]]:
    """Gives the new parameter's states: dictionaries of their own, for state_dicts share the old one's."""
    found = []
    for state in states:
        if old in state:
            state[new] = dict(state.pop(old))
            found.append(state[new])
    return found
