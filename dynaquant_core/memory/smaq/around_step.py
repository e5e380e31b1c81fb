"""Gradients coded before an optimizer's step, weights and its state after it (SmaQ, sec. 4: its protocol)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from dynaquant_core.memory.smaq.alike import Alike
from dynaquant_core.memory.smaq.coder import Coder
from dynaquant_core.state.leaves import is_plain
from dynaquant_core.state.roles import moment_kind

__all__ = ["attach_step"]


def attach_step(
    optimizer: Optimizer,
    coder: Coder,
    alike: Alike,
    *,
    name: str,
    gradients: bool,
    weights: bool,
    state: bool,
) -> list[Any]:
    """Hooks an optimizer's step; returns the hooks' handles.

    Where the step is given a closure that makes the gradients, they are coded when it has made them.  A
    gradient scaler that skips a step skips both hooks, or what follows it where it leaves that to a fused
    optimizer.  The state's tensors are those that the table of roles knows; averages of squares go through
    `Format.second_moments`.
    """

    def settle_gradients() -> None:
        alike.require()
        for place, parameter in _stepped(optimizer, name):
            if parameter.grad is not None:  # says it to the type checker
                _settle(parameter.grad, coder, "gradient", place)

    def before(_: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if (args[1] if len(args) > 1 else kwargs.get("closure")) is not None:
            return _behind_closure(args, kwargs, settle_gradients)
        settle_gradients()
        return None

    def after(optimizer: Optimizer, *_: Any) -> None:
        if not gradients:  # else it was asked before the step
            alike.require()
        for place, parameter in _stepped(optimizer, name):
            _settle_stepped(optimizer, parameter, coder, place, weights=weights, state=state)

    # A compiled step runs them between its graphs: nothing here can be part of one.
    first, last = (torch.compiler.disable(hook) for hook in (before, after))  # type: ignore[no-untyped-call]
    handles: list[Any] = [optimizer.register_step_pre_hook(first)] if gradients else []
    return handles + ([optimizer.register_step_post_hook(last)] if weights or state else [])


def _behind_closure(args: tuple[Any, ...], kwargs: dict[str, Any], then: Callable[[], None]) -> Any:
    """A step's arguments, its closure followed by ``then``."""
    closure = args[1] if len(args) > 1 else kwargs["closure"]

    def watched() -> Any:
        loss = closure()
        then()
        return loss

    return (args[0], watched, *args[2:]), {key: kwargs[key] for key in kwargs if key != "closure"}


def _stepped(optimizer: Optimizer, name: str) -> Iterator[tuple[str, Tensor]]:
    """Parameters that this step is about: a frozen one must not wander from being rounded again.

    None where a gradient scaler has told a fused step that gradients overflowed.
    """
    overflowed = getattr(optimizer, "found_inf", None)
    if isinstance(overflowed, Tensor) and overflowed.item():
        return
    for group, settings in enumerate(optimizer.param_groups):
        for index, parameter in enumerate(settings["params"]):
            if parameter.grad is not None:
                yield f"{name}{group}.{index}", parameter


def _settle_stepped(
    optimizer: Optimizer, parameter: Tensor, coder: Coder, place: str, *, weights: bool, state: bool
) -> None:
    if weights:
        _settle(parameter, coder, "weight", place)
    if state:
        _settle_state(optimizer.state.get(parameter, {}), coder, place)


def _settle_state(state: dict[str, Any], coder: Coder, place: str) -> None:
    kinds = {key: moment_kind(key) for key in state}
    # A centred step takes the root of a second moment less the square of another: rounded apart, of less
    # than nothing.
    exact = {"centre", "second"} if "centre" in kinds.values() else set()
    for key, value in state.items():
        kind = kinds[key]
        if kind is None or kind in exact:
            continue
        if isinstance(value, Tensor) and is_plain(value):  # not of a class that is coded already (8 bits)
            positive = kind in {"second", "factor"}
            form = coder.form.second_moments() if positive else coder.form
            _settle(value, coder, "state", f"{place}.{key}", form)


def _settle(tensor: Tensor, coder: Coder, role: str, place: str, form: Any = None) -> None:
    settled = coder.settle(tensor, role, place, form)
    if settled is None:
        return
    with torch.no_grad():
        if role == "state":
            # A row without gradients has a second moment of zero: a first one that came back as a little
            # more would be divided by next to nothing, step after step.
            settled.masked_fill_(tensor == 0, 0)
        tensor.copy_(settled)
