"""An optimizer's state by parameter name instead of by number, and back.

`torch.distributed.checkpoint.state_dict.get_optimizer_state_dict` does the same, but takes a step with zero
gradients where the optimizer has no state yet: that fires every step hook, creates momenta and counts a step
that never was; and it fails on parameters that never got a gradient.  So the names are put in here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

from dynaquant_core.errors import StateMismatchError
from dynaquant_core.state.places import MOMENT_KINDS
from dynaquant_core.state.strides import like_strides
from dynaquant_core.training.kinds import SCHEDULED, listed, require_entries, require_same_settings
from dynaquant_core.training.subject import own_state

__all__ = ["by_name", "by_number", "is_sharded", "scheduled_as_now"]

Names = Mapping[Tensor, tuple[str, ...]]

#: Entries of a parameter's state that hold one number for each of its elements.
ELEMENTWISE = {name for name, kind in MOMENT_KINDS.items() if kind != "factor"} | {"ax", "prev", "step_size"}

#: Groups of which an error says how many parameters they have.
SHOWN = 8

#: What a scheduler that cycles momentum writes beside learning rates, one or the other by the optimizer.
CYCLED = frozenset({"momentum", "betas"})


def by_name(optimizer: Optimizer, names: Names) -> dict[str, Any]:
    """The optimizer's ``state_dict`` with the name of each parameter in place of its number.

    Parameters of no known name keep their number.  The tensors are the optimizer's own, not copies.

    Args:
        optimizer: any; one whose ``state_dict`` does not number its parameters is given as it is.
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
    return {
        **state,
        "state": {keys[number]: value for number, value in state["state"].items()},
        "param_groups": [
            {**group, "params": [keys[number] for number in group["params"]]}
            for group in state["param_groups"]
        ],
    }


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
            hold other parameters, or a state's shape is not its parameter's; or the optimizer cannot tell
            its own state.  Nothing was changed.
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
        _require_same_lengths(saved, live, where)
    else:
        _require_same_groups(saved, live, where)
    numbers = {key: number for number, key in enumerate(range(len(keys)) if by_place else keys)}
    parameters = _parameters(optimizer)
    require_entries(stored["state"], optimizer, where)
    _require_same_shapes(stored["state"], parameters, numbers, where, any_rank=by_place)
    return {
        **stored,
        "state": {
            numbers[key]: _beside(parameters[numbers[key]], value) for key, value in stored["state"].items()
        },
        "param_groups": [
            {**group, "params": list(own["params"])}
            for group, own in zip(stored["param_groups"], groups, strict=True)
        ],
    }


def scheduled_as_now(state: Any, optimizer: Optimizer) -> Any:
    """A state to load with the optimizer's present learning rates, and what else a scheduler has written.

    For a scheduler that begins anew: it goes on from what it has set when it was made.

    Args:
        state: what `by_number` gave.
        optimizer: the one that will load it.
    """
    groups, own = state.get("param_groups") if isinstance(state, Mapping) else None, optimizer.param_groups
    if not isinstance(groups, list) or len(groups) != len(own):  # an optimizer with a state of its own form
        return state
    return {
        **state,
        "param_groups": [{**group, **_scheduled(now)} for group, now in zip(groups, own, strict=True)],
    }


def _scheduled(group: Mapping[str, Any]) -> dict[str, Any]:
    written = {"lr"} | SCHEDULED | (CYCLED if "max_momentum" in group else frozenset())
    return {setting: value for setting, value in group.items() if setting in written}


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


def is_sharded(optimizer: Optimizer) -> bool:
    """Whether each rank keeps the state of some parameters only: `ZeroRedundancyOptimizer`, fairscale's OSS.

    Both gather it by the same method, by which Lightning knows them too.

    Example:
        >>> import torch
        >>> is_sharded(torch.optim.SGD([torch.zeros(1)]))
        False
    """
    return hasattr(optimizer, "consolidate_state_dict")


def _is_numbered(state: Any, optimizer: Optimizer) -> bool:
    """Whether the state numbers the parameters through all groups, as torch's own optimizers do."""
    if not isinstance(state, Mapping) or not {"state", "param_groups"} <= set(state):
        return False
    groups = state["param_groups"]
    if not isinstance(groups, list) or not all(isinstance(group, Mapping) for group in groups):
        return False
    numbers = [number for group in groups for number in group.get("params", ())]
    return numbers == list(range(len(_parameters(optimizer)))) and set(state["state"]) <= set(numbers)


def _is_native(groups: list[list[Any]]) -> bool:
    """Whether parameters are numbered through all groups."""
    keys = [key for group in groups for key in group]
    return keys == list(range(len(keys)))


def _require_same_lengths(saved: list[list[Any]], live: list[list[Any]], where: str) -> None:
    was, now = [len(group) for group in saved], [len(group) for group in live]
    if was != now:
        raise StateMismatchError(
            f"{where}: the checkpoint's groups have {_counts(was)} parameters, which are numbered, and "
            f"those here {_counts(now)}; build it as it was built then. Nothing was restored."
        )


def _require_same_groups(saved: list[list[Any]], live: list[list[Any]], where: str) -> None:
    if len(saved) != len(live):
        raise StateMismatchError(
            f"{where} has {len(live)} parameter groups and the checkpoint {len(saved)}; build it as it was "
            f"built when the checkpoint was saved. Nothing was restored."
        )
    for number, (was, now) in enumerate(zip(saved, live, strict=True)):
        gone, new = set(was) - set(now), set(now) - set(was)
        if gone or new or len(was) != len(now):
            raise StateMismatchError(
                f"{where}, group {number}: parameters {listed(new)} are not in the checkpoint's group, and "
                f"its {listed(gone)} are not here; build it as it was built then. Nothing was restored."
            )


def _require_same_shapes(
    state: Mapping[Any, Any],
    parameters: list[Tensor],
    numbers: Mapping[Any, int],
    where: str,
    *,
    any_rank: bool,
) -> None:
    """Moments of the parameter's own rank must have its shape; factored ones and counters have their own.

    With ``any_rank`` those of other ranks too: where only the place tells whose they are.
    """
    for key, entries in state.items():
        if key not in numbers:
            raise StateMismatchError(
                f"{where}: the checkpoint's state of {key!r} has no parameter here; build it as it was built "
                f"then. Nothing was restored."
            )
        shape = parameters[numbers[key]].shape
        for name, value in entries.items() if isinstance(entries, Mapping) else ():
            if name not in ELEMENTWISE or not isinstance(value, Tensor):
                continue
            if value.shape != shape and (any_rank or value.dim() == len(shape)):
                raise StateMismatchError(
                    f"{where}: {name} of {key!r} has shape {tuple(value.shape)} in the checkpoint and the "
                    f"parameter {tuple(shape)} here. Nothing was restored."
                )


def _counts(lengths: list[int]) -> str:
    return ", ".join(map(str, lengths[:SHOWN])) + (", ..." if len(lengths) > SHOWN else "")
