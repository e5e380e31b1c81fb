"""Whether a stored optimizer state is of the same parameters: by groups, by names or numbers, by shapes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NoReturn

import torch
from torch import Tensor
from torch.optim import Optimizer

from dynaquant_core.errors import StateMismatchError
from dynaquant_core.state.places import MOMENT_KINDS
from dynaquant_core.training.kinds import kept_by_torch, listed

__all__ = ["require_same_groups", "require_same_lengths", "require_shapes"]

#: Entries of a parameter's state that hold one number for each of its elements, in torch's own classes.
ELEMENTWISE = {name for name, kind in MOMENT_KINDS.items() if kind != "factor"} | {"ax", "prev", "step_size"}

#: Groups of which an error says how many parameters they have.
SHOWN = 8


def require_same_lengths(saved: list[list[Any]], live: list[list[Any]], where: str) -> None:
    """Refuses groups of other numbers of parameters: where parameters are numbered, nothing else tells.

    Raises:
        StateMismatchError: nothing was changed.
    """
    was, now = [len(group) for group in saved], [len(group) for group in live]
    if was != now:
        raise StateMismatchError(
            f"{where}: the checkpoint's groups have {_counts(was)} parameters, which are numbered, and "
            f"those here {_counts(now)}; build it as it was built then. Nothing was restored."
        )


def require_same_groups(saved: list[list[Any]], live: list[list[Any]], where: str) -> None:
    """Refuses groups of other parameters, in whatever order.

    Raises:
        StateMismatchError: names those that one side lacks; nothing was changed.
    """
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


def require_shapes(
    state: Mapping[Any, Any],
    shapes: Mapping[Any, torch.Size],
    optimizer: Optimizer,
    where: str,
    *,
    by_place: bool,
) -> None:
    """Refuses the state of a parameter that is not here, and moments of a shape that it cannot have.

    A class of torch's holds one number for each element; others may hold one a row, or of a low rank.

    Args:
        state: the stored one, by parameter's key.
        shapes: of the parameters here, by key.
        optimizer: the one to load into.
        where: its name in errors.
        by_place: whether only the place of a parameter tells which one is meant.

    Raises:
        StateMismatchError: nothing was changed.
    """
    for key in state:
        if key not in shapes:
            raise StateMismatchError(
                f"{where}: the checkpoint's state of {key!r} has no parameter here; build it as it was built "
                f"then. Nothing was restored."
            )
    if kept_by_torch(optimizer) is not None:
        _require_same_shapes(state, shapes, where, any_rank=by_place)
    elif by_place:
        _require_no_others_shapes(state, shapes, where)


def _require_same_shapes(
    state: Mapping[Any, Any], shapes: Mapping[Any, torch.Size], where: str, *, any_rank: bool
) -> None:
    """Moments of the parameter's own rank must have its shape; factored ones and counters have their own.

    With ``any_rank`` those of other ranks too: where only the place tells whose they are.
    """
    for key, name, shape in _moments(state):
        if shape != shapes[key] and (any_rank or len(shape) == len(shapes[key])):
            _refuse_shape(key, name, shape, shapes, where)


def _require_no_others_shapes(state: Mapping[Any, Any], shapes: Mapping[Any, torch.Size], where: str) -> None:
    """Refuses a moment of another parameter's shape: they stand in another order than when it was saved.

    For classes that choose the shapes of their moments, where only the place tells whose they are.
    """
    known = set(shapes.values())
    for key, name, shape in _moments(state):
        if shape != shapes[key] and shape in known:
            _refuse_shape(key, name, shape, shapes, where)


def _moments(state: Mapping[Any, Any]) -> Iterator[tuple[Any, str, torch.Size]]:
    """Parameter's key, name and shape of each moment."""
    for key, entries in state.items():
        for name, value in entries.items() if isinstance(entries, Mapping) else ():
            if name in ELEMENTWISE and isinstance(value, Tensor):
                yield key, name, value.shape


def _refuse_shape(
    key: Any, name: str, shape: torch.Size, shapes: Mapping[Any, torch.Size], where: str
) -> NoReturn:
    raise StateMismatchError(
        f"{where}: {name} of {key!r} has shape {tuple(shape)} in the checkpoint and the parameter "
        f"{tuple(shapes[key])} here. Nothing was restored."
    )


def _counts(lengths: list[int]) -> str:
    return ", ".join(map(str, lengths[:SHOWN])) + (", ..." if len(lengths) > SHOWN else "")
