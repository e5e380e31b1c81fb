"""An optimizer's state by parameter name instead of by number, and back.

`torch.distributed.checkpoint.state_dict.get_optimizer_state_dict` does the same, but takes a step with zero
gradients where the optimizer has no state yet: that fires every step hook, creates momenta and counts a step
that never was; and it fails on parameters that never got a gradient.  So the names are put in here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from dynaquant_core.state.strides import like_strides
from dynaquant_core.training.groups import (
    ELEMENTWISE,
    require_same_groups,
    require_same_lengths,
    require_shapes,
)
from dynaquant_core.training.kinds import SCHEDULED, kept_by_torch, require_entries, require_same_settings
from dynaquant_core.training.subject import own_state

__all__ = [
    "by_name",
    "by_number",
    "load",
    "rates",
    "require_kind",
    "scheduled_as_now",
    "scheduled_as_stored",
]

Names = Mapping[Tensor, tuple[str, ...]]

#: What a scheduler that cycles momentum writes beside learning rates, one or the other by the optimizer.
CYCLED = frozenset({"momentum", "betas"})

#: What a group lists for each of its parameters, the second where the optimizer was given names.
BY_PARAMETER = ("params", "param_names")


def by_name(optimizer: Optimizer, names: Names) -> dict[str, Any]:
    """The optimizer's ``state_dict`` with the name of each parameter in place of its number.

    Parameters of no known name keep their number, and what an optimizer keeps under a text beside the states
    of its parameters (a count) keeps that.  The tensors are the optimizer's own, not copies.

    Args:
        optimizer: any; one whose ``state_dict`` does not number its parameters, or that keeps something under
            the name of one, is given as it is.
        names: of the models' parameters (`parameter_names`).

    Example:
        >>> import torch
        >>> weight = torch.nn.Parameter(torch.zeros(1))
        >>> optimizer = torch.optim.SGD([weight], lr=0.1)
        >>> by_name(optimizer, {weight: ("head.weight",)})["param_groups"][0]["params"]
        ['head.weight']
    """
    state: dict[str, Any] = optimizer.state_dict()
    if not _is_numbered(state, optimizer):
        return state
    keys = _keys(optimizer, names)
    if _beside_parameters(state) & set(keys):
        return state
    return {
        **state,
        "state": {key if isinstance(key, str) else keys[key]: value for key, value in state["state"].items()},
        "param_groups": [
            {**group, "params": [keys[number] for number in group["params"]]}
            for group in state["param_groups"]
        ],
    }


def require_kind(stored: Any, optimizer: Optimizer, own: Any, where: str, part: str = "optimizer") -> None:
    """Refuses another kind of optimizer's state, as far as the state tells.

    Args:
        stored: what would be loaded.
        optimizer: the one to load into.
        own: its ``state_dict()``; one of a form of its own is not compared.
        where: its name in errors.
        part: its name for ``fresh``.

    Raises:
        StateMismatchError: nothing was changed.
    """
    if _is_numbered(own, optimizer):
        require_same_settings(stored, own["param_groups"], where, part)
        require_entries(stored["state"], optimizer, where, part)


def by_number(stored: Any, optimizer: Optimizer, names: Names, where: str) -> Any:
    """A stored state as this optimizer's ``load_state_dict`` takes it.

    Within a group parameters may stand in another order than when they were saved.  A native state, whose
    parameters are numbers, is taken as torch takes it: group by group, in the order of the parameters.

    Args:
        stored: what `by_name` gave, or an optimizer's own ``state_dict``; for an optimizer whose state has a
            form of its own it is given back as it is.
        optimizer: the one to load into.
        names: as in `by_name`.
        where: name of the optimizer in errors.

    Raises:
        StateMismatchError: it is another kind of optimizer's, or of several, or no whole state, the groups
            hold other parameters, or a moment of one of torch's classes has not its parameter's shape; or
            the optimizer cannot tell its own state.  Nothing was changed.
    """
    own_now = own_state(optimizer, where)
    if not _is_numbered(own_now, optimizer):
        return stored
    keys = _keys(optimizer, names)
    groups = own_now["param_groups"]
    require_same_settings(stored, groups, where)
    live = [[keys[number] for number in group["params"]] for group in groups]
    saved = [list(group["params"]) for group in stored["param_groups"]]
    by_place = _is_native(saved) and not _is_native(live)
    if by_place:
        require_same_lengths(saved, live, where)
    else:
        require_same_groups(saved, live, where)
    numbers = {key: number for number, key in enumerate(range(len(keys)) if by_place else keys)}
    parameters = _parameters(optimizer)
    beside = {key: stored["state"][key] for key in _beside_parameters(stored) - set(numbers)}
    state = {key: value for key, value in stored["state"].items() if key not in beside}
    require_entries(state, optimizer, where)
    shapes = {key: parameters[number].shape for key, number in numbers.items()}
    require_shapes(state, shapes, optimizer, where, by_place=by_place)
    return {
        **stored,
        "state": {numbers[key]: _beside(parameters[numbers[key]], value) for key, value in state.items()}
        | beside,
        "param_groups": [
            _with_parameters_of(own, group) for group, own in zip(stored["param_groups"], groups, strict=True)
        ],
    }


def load(optimizer: Optimizer, state: Any) -> None:
    """Has an optimizer load a state, every entry in the dtype that it was saved in.

    Torch casts all but "step" to the parameter's own: moments in float32 beside weights in float16, of which
    small ones underflow, and codes and masks.  A class that loads, or tells its state, in a way of its own is
    left to it, and so are the moments of torch's classes, which are of the parameter's dtype.

    Args:
        optimizer: any.
        state: what `by_number` gave; its tensors become the optimizer's own.

    Example:
        >>> import torch
        >>> weight = torch.nn.Parameter(torch.zeros(1, dtype=torch.float16))
        >>> optimizer = torch.optim.Optimizer([weight], {})
        >>> load(optimizer, {**optimizer.state_dict(), "state": {0: {"scale": torch.tensor(1e-9)}}})
        >>> optimizer.state[weight]
        {'scale': tensor(1.0000e-09)}
    """
    optimizer.load_state_dict(state)
    kind = type(optimizer)
    if any(getattr(kind, way) is not getattr(Optimizer, way) for way in ("state_dict", "load_state_dict")):
        return
    cast = ELEMENTWISE if kept_by_torch(optimizer) is not None else frozenset()
    parameters = _parameters(optimizer)
    for number, stored in state["state"].items():
        if isinstance(number, str) or not isinstance(stored, Mapping):  # torch leaves what is no parameter's
            continue
        held = optimizer.state[parameters[number]]
        for name in held:
            if name in stored and name != "step" and name not in cast:
                held[name] = _uncast(held[name], stored[name], parameters[number].dtype)


def _uncast(loaded: Any, stored: Any, dtype: torch.dtype) -> Any:
    """What was loaded, as it was stored where torch has cast it to the parameter's ``dtype``."""
    if isinstance(stored, str):  # torch makes another text of it
        return stored
    if isinstance(stored, Tensor) and isinstance(loaded, Tensor):
        return stored.to(loaded.device) if loaded.dtype == dtype != stored.dtype else loaded
    if isinstance(stored, dict) and isinstance(loaded, dict):
        return {name: _uncast(loaded[name], value, dtype) for name, value in stored.items()}
    if isinstance(stored, (list, tuple)) and isinstance(loaded, (list, tuple)):
        return type(stored)(_uncast(*pair, dtype) for pair in zip(loaded, stored, strict=True))
    return loaded


def scheduled_as_now(state: Any, optimizer: Optimizer) -> Any:
    """A state to load with the optimizer's present learning rates, and what else a scheduler has written.

    For a scheduler that begins anew: it goes on from what it has set when it was made.

    Args:
        state: what `by_number` gave.
        optimizer: the one that will load it.
    """
    return _beside_now(state, optimizer, lambda group, now: {**group, **_scheduled(now)})


def scheduled_as_stored(state: Any, optimizer: Optimizer) -> Any:
    """The same with the checkpoint's learning rates, and what a new scheduler has noted beside them.

    For one that begins anew and has set no rates, or beside one that is restored and has.
    """
    return _beside_now(
        state,
        optimizer,
        lambda group, now: {setting: now[setting] for setting in SCHEDULED & set(now)} | group,
    )


def _beside_now(
    state: Any, optimizer: Optimizer, joined: Callable[[dict[str, Any], dict[str, Any]], dict[str, Any]]
) -> Any:
    groups, own = state.get("param_groups") if isinstance(state, Mapping) else None, optimizer.param_groups
    if not isinstance(groups, list) or len(groups) != len(own):  # an optimizer with a state of its own form
        return state
    return {**state, "param_groups": [joined(*pair) for pair in zip(groups, own, strict=True)]}


def rates(state: Any) -> str:
    """The learning rates in a state, for the log: each once, in the order of the groups.

    Example:
        >>> rates({"param_groups": [{"lr": 0.1}, {"lr": 1e-05}, {"lr": 0.1}]}), rates([])
        ('0.1, 1e-05', 'of its own')
    """
    groups = state.get("param_groups") if isinstance(state, Mapping) else None
    found = [group["lr"] for group in groups or () if isinstance(group, Mapping) and "lr" in group]
    return ", ".join(dict.fromkeys(f"{float(rate):.4g}" for rate in found)) or "of its own"


def _scheduled(group: Mapping[str, Any]) -> dict[str, Any]:
    written = {"lr"} | SCHEDULED | (CYCLED if "max_momentum" in group else frozenset())
    return {setting: value for setting, value in group.items() if setting in written}


def _with_parameters_of(own: Mapping[str, Any], group: Mapping[str, Any]) -> dict[str, Any]:
    """A stored group's settings, and in the own one's order what goes by parameter: torch's names as well."""
    settings = {setting: value for setting, value in group.items() if setting not in BY_PARAMETER}
    return settings | {setting: list(own[setting]) for setting in BY_PARAMETER if setting in own}


def _beside(parameter: Tensor, entries: Any) -> Any:
    """A parameter's state with its memory in the parameter's order: fused kernels walk both side by side."""
    if not isinstance(entries, Mapping):
        return entries
    return {
        name: like_strides(value, parameter)
        if isinstance(value, Tensor) and value.shape == parameter.shape
        else value
        for name, value in entries.items()
    }


def _parameters(optimizer: Optimizer) -> list[Tensor]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def _keys(optimizer: Optimizer, names: Names) -> list[str | int]:
    """Each parameter's name, by its number."""
    parameters = _parameters(optimizer)
    return [names[one][0] if one in names else number for number, one in enumerate(parameters)]


def _is_numbered(state: Any, optimizer: Optimizer) -> bool:
    """Whether the state numbers the parameters through all groups, as torch's own optimizers do."""
    if not isinstance(state, Mapping) or not {"state", "param_groups"} <= set(state):
        return False
    groups = state["param_groups"]
    if not isinstance(groups, list) or not all(isinstance(group, Mapping) for group in groups):
        return False
    numbers = [number for group in groups for number in group.get("params", ())]
    keys = set(state["state"]) - _beside_parameters(state)
    return numbers == list(range(len(_parameters(optimizer)))) and keys <= set(numbers)


def _beside_parameters(state: Mapping[str, Any]) -> set[str]:
    """The texts among a state's keys: where parameters are numbered, what is kept beside their states."""
    return {key for key in state["state"] if isinstance(key, str)}


def _is_native(groups: list[list[Any]]) -> bool:
    """Whether parameters are numbered through all groups."""
    keys = [key for group in groups for key in group]
    return keys == list(range(len(keys)))
