"""Of what kind the optimizer or scheduler was whose state is stored: told by what its state holds.

A state does not name its class (where a checkpoint does: `classes`).  Loading another's often succeeds, and
the run fails at its next step or trains by half of its settings, so it is found out here, before anything is
touched.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterable, Mapping
from typing import Any, Final

from torch import optim
from torch.optim import Optimizer

from dynaquant_core.errors import StateMismatchError

__all__ = [
    "SCHEDULED",
    "is_function",
    "is_inner",
    "kept_by_torch",
    "listed",
    "require_entries",
    "require_same_scheduler",
    "require_same_settings",
    "way_round",
]

#: What torch's schedulers note in an optimizer's groups.
SCHEDULED: Final = frozenset({"initial_lr", "max_lr", "min_lr", "swa_lr", "base_momentum", "max_momentum"})

_ADAM: Final = frozenset({"step", "exp_avg", "exp_avg_sq"})

#: What a class of torch's expects of a parameter's state that is not empty: it makes them together, at the
#: first step, and never looks again.  Not here are those that make each entry when they need it (SGD, Muon,
#: LBFGS), and Adafactor, whose entries depend on the shape.
NEEDED: Final[Mapping[type[Optimizer], frozenset[str]]] = {
    optim.ASGD: frozenset({"step", "eta", "mu", "ax"}),
    optim.Adadelta: frozenset({"step", "square_avg", "acc_delta"}),
    optim.Adagrad: frozenset({"step", "sum"}),
    optim.Adam: _ADAM,
    optim.AdamW: _ADAM,
    optim.Adamax: frozenset({"step", "exp_avg", "exp_inf"}),
    optim.NAdam: _ADAM | {"mu_product"},
    optim.RAdam: _ADAM,
    optim.RMSprop: frozenset({"step", "square_avg"}),
    optim.Rprop: frozenset({"step", "prev", "step_size"}),
    optim.SparseAdam: _ADAM,
}

#: Where a class says what its states are: one that has its own of these may keep anything, under any name.
WAYS: Final = ("step", "_init_group", "state_dict", "load_state_dict")

#: What any scheduler of torch's holds, or held in one of its versions: it tells none from another.
COMMON: Final = frozenset(
    {
        "_get_lr_called_within_step",
        "_is_initial",
        "_last_lr",
        "_step_count",
        "base_lrs",
        "last_epoch",
        "verbose",
    }
)


def require_same_settings(
    stored: Any, groups: list[dict[str, Any]], where: str, part: str = "optimizer"
) -> None:
    """Refuses what is no optimizer's state, and settings of which either side lacks some of the other's.

    Only one side may have more: another version of torch adds settings, and a scheduler notes its own.

    Args:
        stored: what would be loaded.
        groups: the optimizer's own.
        where: its name in errors.
        part: its name for ``fresh``.

    Raises:
        StateMismatchError: nothing was changed.
    """
    if not isinstance(stored, Mapping) or not {"state", "param_groups"} <= set(stored):
        raise StateMismatchError(
            f"{where}: the checkpoint holds no state of a single optimizer there; give as many optimizers, "
            f"under the same names, as when it was saved. Nothing was restored."
        )
    _require_well_formed(stored, where)
    for was, now in zip(stored["param_groups"], groups, strict=False):
        gone, new = set(was) - set(now) - SCHEDULED, set(now) - set(was) - SCHEDULED
        if gone and new:
            raise StateMismatchError(
                f"{where} has the settings {listed(new)} and the checkpoint {listed(gone)} instead: it was "
                f"saved with another kind of optimizer; build that one {way_round(part)}. Nothing was "
                f"restored."
            )


def _require_well_formed(stored: Mapping[str, Any], where: str) -> None:
    groups = stored["param_groups"]
    if not isinstance(groups, (list, tuple)) or not all(map(_is_group, groups)):
        wrong = "'param_groups' must be a list of dictionaries that list their parameters under 'params'"
    elif not isinstance(stored["state"], Mapping):
        wrong = f"'state' must be a dictionary, and is {type(stored['state']).__name__}"
    else:
        return
    raise StateMismatchError(
        f"{where}: the checkpoint holds no whole optimizer state ({wrong}): save optimizer.state_dict() as "
        f"it is. Nothing was restored."
    )


def _is_group(group: Any) -> bool:
    keys = group.get("params") if isinstance(group, Mapping) else None
    return isinstance(keys, (list, tuple)) and all(isinstance(key, (int, str)) for key in keys)


def kept_by_torch(optimizer: Optimizer) -> type[Optimizer] | None:
    """The class of torch's that makes and reads the optimizer's states; None where another class does.

    A class made from one of torch's may hold other entries for some parameters, or of other shapes, as soon
    as it has a step of its own.

    Example:
        >>> import torch
        >>> class Renamed(optim.AdamW):
        ...     pass
        >>> class Rewritten(optim.AdamW):
        ...     def step(self, closure=None): ...
        >>> [kept_by_torch(kind([torch.zeros(1)])) for kind in (Renamed, Rewritten)]
        [<class 'torch.optim.adamw.AdamW'>, None]
    """
    own = type(optimizer)
    kind = next((base for base in own.__mro__ if base.__module__.startswith("torch.optim.")), Optimizer)
    same = all(_function(own, way) is _function(kind, way) for way in WAYS)
    return kind if kind is not Optimizer and same else None


def _function(kind: type[Optimizer], name: str) -> Any:
    """A method as it was written: torch wraps ``step`` of each class of which an optimizer is made."""
    found = getattr(kind, name, None)
    return found if found is None else inspect.unwrap(found)


def require_entries(
    state: Mapping[Any, Any], optimizer: Optimizer, where: str, part: str = "optimizer"
) -> None:
    """Refuses a parameter's stored state without what the optimizer's class needs at its next step.

    Only classes whose states are torch's own doing (`kept_by_torch`) are checked.

    Raises:
        StateMismatchError: nothing was changed.

    Example:
        >>> import torch
        >>> adagrad = torch.optim.Adagrad([torch.zeros(1)])
        >>> require_entries({"head.weight": {"step": 1, "sum": torch.zeros(1)}}, adagrad, "optimizer")
    """
    kind = kept_by_torch(optimizer)
    if kind is None or kind not in NEEDED:
        return
    for key, entries in state.items():
        if not isinstance(entries, Mapping) or not entries:
            continue
        lacking = NEEDED[kind] - set(entries)
        if lacking:
            raise StateMismatchError(
                f"{where} is {type(optimizer).__name__}, which needs {listed(lacking)}, and the checkpoint's "
                f"state of {key!r} holds {listed(entries)}: it was saved with another kind of optimizer; "
                f"build that one {way_round(part)}. Nothing was restored."
            )


def require_same_scheduler(stored: Any, own: Any, where: str, part: str = "scheduler") -> None:
    """Refuses a stored state if it and the scheduler's own have each something that the other lacks.

    Only one side may have more, as with optimizers.  A scheduler made of others needs as many as were
    stored, each of the same kind.  States that are no dictionaries are not compared.

    Args:
        stored: what the scheduler would load.
        own: its ``state_dict()``.
        where: its name in errors.
        part: its name for ``fresh``.

    Raises:
        StateMismatchError: nothing was changed.

    Example:
        >>> require_same_scheduler({"gamma": 0.1, "verbose": False}, {"gamma": 0.5, "new": 1}, "scheduler")
        >>> try:
        ...     require_same_scheduler({"gamma": 0.1}, {"T_max": 9}, "scheduler")
        ... except StateMismatchError as error:
        ...     print(str(error)[:52])
        scheduler has T_max and the checkpoint gamma instead
    """
    if not isinstance(stored, Mapping) or not isinstance(own, Mapping):
        return
    gone, new = set(stored) - set(own) - COMMON, set(own) - set(stored) - COMMON
    if gone and new:
        raise StateMismatchError(
            f"{where} has {listed(new)} and the checkpoint {listed(gone)} instead: it was saved with another "
            f"kind of scheduler; build that one {way_round(part)}. Nothing was restored."
        )
    for key in stored:
        if is_inner(key) and _are_states(stored[key]) and _are_states(own.get(key)):
            _require_same_inner(stored[key], own[key], f"{where}.{key}", part)


def is_inner(key: Any) -> bool:
    """Whether a scheduler made of others has the list of their states there ("_schedulers" in torch)."""
    return str(key).endswith("schedulers")


def is_function(value: Any) -> bool:
    """Whether a checkpoint leaves a value to the scheduler, which has it from when it is made."""
    return inspect.isroutine(value)


def _require_same_inner(stored: list[Any], own: list[Any], where: str, part: str) -> None:
    if len(stored) != len(own):
        raise StateMismatchError(
            f"{where} are {len(own)} and those of the checkpoint {len(stored)}: it was saved with another "
            f"kind of scheduler; build that one {way_round(part)}. Nothing was restored."
        )
    for number, pair in enumerate(zip(stored, own, strict=True)):
        require_same_scheduler(*pair, f"{where}[{number}]", part)


def _are_states(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(one, Mapping) for one in value)


def way_round(part: str) -> str:
    """What else to do than to build what was saved; an optimizer of the run cannot begin anew in its folder.

    Args:
        part: full name of an optimizer or a scheduler.

    Example:
        >>> way_round("scheduler.g")
        'or call restore(fresh=("scheduler.g",)) to let this one begin as it is'
    """
    if part.partition(".")[0] == "optimizer":
        return "or restore without an optimizer, and save into another folder"
    return f"or call restore(fresh=({json.dumps(part, ensure_ascii=False)},)) to let this one begin as it is"


def listed(names: Iterable[Any]) -> str:
    """A few names for an error, in order.

    Example:
        >>> listed("gfedcba"), listed(())
        ('a, b, c, d, e and 2 more', 'none')
    """
    shown = sorted(map(str, names))
    return ", ".join(shown[:5]) + (f" and {len(shown) - 5} more" if len(shown) > 5 else "") or "none"
