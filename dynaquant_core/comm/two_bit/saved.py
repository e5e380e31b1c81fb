"""The residual of a rank as a tree for checkpoints, and of all ranks for another number of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from dynaquant_core.comm.two_bit.residuals import Residuals
from dynaquant_core.comm.two_bit.settings import Reduce
from dynaquant_core.config import require, require_choice
from dynaquant_core.errors import StateMismatchError

__all__ = ["put_back", "redistribute", "require_fit", "require_step", "state_of"]

KEYS = ("rank", "ranks", "step", "parameters")


def state_of(rank: int, ranks: int, step: int, reduce: Reduce, residuals: Residuals) -> dict[str, Any]:
    """What `put_back` takes: whose it is, the steps that were synchronised, and the live residuals."""
    parameters = residuals.state_dict()
    return {"rank": rank, "ranks": ranks, "step": step, "reduce": reduce, "parameters": parameters}


def put_back(state: Any, rank: int, ranks: int, residuals: Residuals) -> int:
    """Writes a stored state into ``residuals``; returns its number of synchronised steps.

    Raises:
        StateMismatchError: as `require_fit`; nothing was touched.
    """
    require_fit(state, rank, ranks, residuals)
    residuals.load_state_dict(state["parameters"])
    return int(state["step"])


def require_fit(state: Any, rank: int, ranks: int, residuals: Residuals) -> None:
    """Raises StateMismatchError where a state is of another rank, number of ranks or model."""
    _require_keys(state)
    if (state["rank"], state["ranks"]) != (rank, ranks):
        raise StateMismatchError(
            f"two_bit: the stored residual is of rank {state['rank']} of {state['ranks']}, this is rank "
            f"{rank} of {ranks}; restore every rank from a checkpoint of its own, or hand the states of all "
            f"ranks to two_bit.redistribute; nothing was restored."
        )
    residuals.require_fit(state["parameters"])


def redistribute(
    states: Sequence[Mapping[str, Any]], ranks: int, reduce: Reduce | None = None
) -> list[dict[str, Any]]:
    """The states of a job for another number of ranks: what was still to come for the weights stays the same.

    Each new rank gets the mean of the old residuals (``reduce="mean"``, where the sum over the ranks is
    divided by their number anyway) or an equal share of their sum (``"sum"``).

    Args:
        states: what `state_dict` gave on each rank of one job at one step.
        ranks: of the new job.
        reduce: how both jobs join gradients; None: as the states say ("mean" in those that say nothing).

    Returns:
        A state for each new rank, in their order.

    Raises:
        ConfigError: ``ranks`` is below 1, or ``reduce`` is unknown.
        StateMismatchError: the states are not those of all ranks of one job at one step.

    Example:
        >>> def state(rank, value):
        ...     weight = {"residual": torch.tensor([value])}
        ...     return {"rank": rank, "ranks": 2, "step": 7, "parameters": {"weight": weight}}
        >>> (one,) = redistribute([state(0, 0.2), state(1, 0.4)], ranks=1, reduce="sum")
        >>> [round(value, 3) for value in one["parameters"]["weight"]["residual"].tolist()]
        [0.6]
    """
    whole = isinstance(ranks, int) and not isinstance(ranks, bool) and ranks > 0
    require(whole, f"two_bit: ranks must be 1 or more, got {ranks!r}.")
    require_choice("two_bit", "reduce", reduce, (None, "mean", "sum"))
    _require_whole_job(states)
    reduce = reduce or states[0].get("reduce", "mean")
    share = 1.0 / (len(states) if reduce == "mean" else ranks)
    first = states[0]["parameters"]
    nothing = torch.zeros((), device="cpu")
    totals = {
        name: sum((state["parameters"][name]["residual"].double() for state in states), nothing)
        for name in first
    }
    parameters = {name: (total * share).float() for name, total in totals.items()}
    return [
        {
            "rank": rank,
            "ranks": ranks,
            "step": states[0]["step"],
            "reduce": reduce,
            "parameters": {name: {"residual": value.clone()} for name, value in parameters.items()},
        }
        for rank in range(ranks)
    ]


def _require_keys(state: Any) -> None:
    missing = [key for key in KEYS if key not in state] if isinstance(state, Mapping) else list(KEYS)
    if missing:
        raise StateMismatchError(
            f"two_bit: the stored state lacks {', '.join(missing)}; expected what state_dict gave; nothing "
            f"was restored."
        )
    require_step(state["step"])


def require_step(step: Any) -> None:
    """Raises StateMismatchError unless a stored number of steps is one."""
    if not isinstance(step, int) or isinstance(step, bool) or step < 0:
        raise StateMismatchError(
            f"two_bit: the stored state is of step {step!r}; expected what state_dict gave; nothing was "
            f"restored."
        )


def _require_whole_job(states: Any) -> None:
    listed = isinstance(states, Sequence) and len(states) > 0
    for state in states if listed else (None,):
        _require_keys(state)
    found = [(state["rank"], state["ranks"], state["step"], _shapes(state)) for state in states]
    expected = [(rank, len(states), *found[0][2:]) for rank in range(len(states))]
    joined = {repr(state.get("reduce", "mean")) for state in states}
    if found != expected or joined not in ({"'mean'"}, {"'sum'"}):
        said = [f"rank {rank} of {ranks} at step {step}" for rank, ranks, step, _ in found]
        raise StateMismatchError(
            f"two_bit: expected the states of all ranks of one job at one step, in their order, of the same "
            f"parameters and joined in one way; found {said}, joined by {', '.join(sorted(joined))}."
        )


def _shapes(state: Mapping[str, Any]) -> list[tuple[str, tuple[int, ...]]]:
    """(name, shape) of each residual; raises StateMismatchError where one is no tensor of finite numbers."""
    own = state["parameters"]
    items = own.items() if isinstance(own, Mapping) else [("parameters", own)]
    found = []
    for name, entry in items:
        residual = entry.get("residual") if isinstance(entry, Mapping) else None
        if not isinstance(residual, Tensor) or not bool(residual.isfinite().all()):
            raise StateMismatchError(
                f"two_bit: the stored residual of {name!r} is no tensor of finite numbers; expected what "
                "state_dict gave on each rank."
            )
        found.append((name, tuple(residual.shape)))
    return found
