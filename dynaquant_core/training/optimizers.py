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
from dynaquant_core.state.roles import MOMENTS
from dynaquant_core.state.strides import like_strides

__all__ = ["by_name", "by_number"]

Names = Mapping[Tensor, tuple[str, ...]]

#: What torch's schedulers note in an optimizer's groups.
SCHEDULED = frozenset({"initial_lr", "max_lr", "min_lr", "swa_lr", "base_momentum", "max_momentum"})


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


def by_number(stored: Mapping[str, Any], optimizer: Optimizer, names: Names, where: str) -> dict[str, Any]:
    """A stored state as this optimizer's ``load_state_dict`` takes it.

    Within a group parameters may stand in another order than when they were saved.

    Args:
        stored: what `by_name` gave.
        optimizer: the one to load into.
        names: as in `by_name`.
        where: name of the optimizer in errors.

    Raises:
        StateMismatchError: it is another kind of optimizer's, or of several, the groups hold other
            parameters, or a state's shape is not its parameter's; nothing was changed.
    """
    if not _is_numbered(optimizer.state_dict(), optimizer):
        return dict(stored)
    keys = _keys(optimizer, names)
    groups = optimizer.state_dict()["param_groups"]
    _require_same_kind(stored, groups, where)
    live = [[keys[number] for number in group["params"]] for group in groups]
    saved = [list(group["params"]) for group in stored["param_groups"]]
    _require_same_groups(saved, live, where)
    numbers = {key: number for number, key in enumerate(keys)}
    parameters = _parameters(optimizer)
    _require_same_shapes(stored["state"], parameters, numbers, where)
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


def _is_numbered(state: Mapping[str, Any], optimizer: Optimizer) -> bool:
    """Whether the state numbers the parameters through all groups, as torch's own optimizers do."""
    if not {"state", "param_groups"} <= set(state):
        return False
    numbers = [number for group in state["param_groups"] for number in group.get("params", ())]
    return numbers == list(range(len(_parameters(optimizer)))) and set(state["state"]) <= set(numbers)


def _require_same_kind(stored: Any, groups: list[dict[str, Any]], where: str) -> None:
    """Refuses what is no optimizer's state, and settings of which either side lacks some of the other's.

    Only one side may have more: another version of torch adds settings, and a scheduler notes its own.
    """
    if not isinstance(stored, Mapping) or not {"state", "param_groups"} <= set(stored):
        raise StateMismatchError(
            f"{where}: the checkpoint holds no state of a single optimizer there; give as many optimizers, "
            f"under the same names, as when it was saved. Nothing was restored."
        )
    for was, now in zip(stored["param_groups"], groups, strict=False):
        gone, new = set(was) - set(now) - SCHEDULED, set(now) - set(was) - SCHEDULED
        if gone and new:
            raise StateMismatchError(
                f"{where} has the settings {_listed(new)} and the checkpoint {_listed(gone)} instead: it was "
                f"saved with another kind of optimizer; build that one. Nothing was restored."
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
                f"{where}, group {number}: parameters {_listed(new)} are not in the checkpoint's group, and "
                f"its {_listed(gone)} are not here; build it as it was built then. Nothing was restored."
            )


def _require_same_shapes(
    state: Mapping[Any, Any], parameters: list[Tensor], numbers: Mapping[Any, int], where: str
) -> None:
    """Moments of the parameter's own rank must have its shape; factored ones and counters have their own."""
    for key, entries in state.items():
        if key not in numbers:
            raise StateMismatchError(f"{where}: the checkpoint's state of {key!r} has no parameter here.")
        shape = parameters[numbers[key]].shape
        for name, value in entries.items() if isinstance(entries, Mapping) else ():
            full_rank = isinstance(value, Tensor) and value.dim() == len(shape) > 0
            if full_rank and name in MOMENTS and value.shape != shape:
                raise StateMismatchError(
                    f"{where}: {name} of {key!r} has shape {tuple(value.shape)} in the checkpoint and the "
                    f"parameter {tuple(shape)} here. Nothing was restored."
                )


def _listed(names: set[Any]) -> str:
    shown = sorted(map(str, names))
    return ", ".join(shown[:5]) + (f" and {len(shown) - 5} more" if len(shown) > 5 else "") or "none"
