"""How many optimizer steps were made, and how many are left until the next save."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from typing import Any

from torch import Tensor
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook

from dynaquant_core.plugins import OwnedHooks

__all__ = ["Steps", "steps_of"]


class Steps:
    """Counts optimizer steps and foresees the next save.

    Of several optimizers the busiest counts: one may never step, as that of a part that is frozen for now.

    Accelerate has no schedule: ``every`` is the user's word, and without it saves are taken to go on at the
    distance of the last two.

    Args:
        counted: gives the optimizers that are prepared now, which may be others later; a step that a
            gradient scaler skips is none.
        every: optimizer steps between saves, or None.
        look_ahead: told after every step how many are left; None where nobody knows.

    Attributes:
        done: completed steps.
        since: the step that was restored; None where none was.
    """

    def __init__(
        self,
        counted: Callable[[], Iterable[Optimizer]],
        every: int | None,
        look_ahead: Callable[[int | None], None],
    ) -> None:
        self.done = 0
        self.since: int | None = None
        self._every = every
        self._look_ahead = look_ahead
        self._saves: list[int] = []
        self._counted = counted
        self._of_each: weakref.WeakKeyDictionary[Optimizer, int] = weakref.WeakKeyDictionary()
        self._origin = 0  # steps of the run before those in `_of_each`
        handle = register_optimizer_step_post_hook(_counting(weakref.ref(self)))
        self._hooks = OwnedHooks(self, [handle])
        self._look_ahead(self.left)

    @property
    def left(self) -> int | None:
        """Steps until the next save, 0 where it is due now; None where nobody knows."""
        if self._every is not None:
            return -self.done % self._every
        if len(self._saves) < 2:
            return None
        before, last = self._saves
        expected = 2 * last - before
        return expected - self.done if self.done <= expected else None

    def saved(self) -> None:
        """A save was made of the present step."""
        if not self._saves or self._saves[-1] != self.done:
            self._saves = [*self._saves[-1:], self.done]

    def restored(self, step: int) -> None:
        """The run goes on from another step."""
        self.done, self._saves, self.since = step, [step], step
        self._begin()
        self._look_ahead(self.left)

    def go_on(self, before: Steps) -> None:
        """These are the next steps of the same run."""
        self.done, self.since = before.done, before.since
        self._begin()
        self._look_ahead(self.left)

    def agree(self, step: int) -> None:
        """The main process has counted so many, which holds for all: inputs may be uneven."""
        if step != self.done:
            self.done = step
            self._begin()

    def close(self) -> None:
        """Counts no more."""
        self._hooks.remove()

    def after_step(self, optimizer: Optimizer) -> None:
        """Some optimizer has stepped."""
        counted = list(self._counted())
        if not any(optimizer is one for one in counted):
            return
        if not any(one in self._of_each for one in counted):
            self._begin()  # others are prepared than before
        own = self._of_each.get(optimizer, 0) + 1
        self._of_each[optimizer] = own
        if self._origin + own > self.done:
            self.done = self._origin + own
            self._look_ahead(self.left)

    def _begin(self) -> None:
        """The steps of each count from here."""
        self._of_each.clear()
        self._origin = self.done


def _counting(steps: weakref.ref[Steps]) -> Callable[..., None]:
    """A hook for all optimizers that keeps nothing alive."""

    def count(optimizer: Optimizer, *_: Any) -> None:
        held = steps()
        if held is not None:
            held.after_step(optimizer)

    return count


def steps_of(optimizers: Iterable[Optimizer]) -> int:
    """Steps that the optimizers' own states have counted; 0 for optimizers that do not count.

    Example:
        >>> import torch
        >>> weight = torch.nn.Parameter(torch.ones(1))
        >>> adam = torch.optim.Adam([weight])
        >>> weight.grad = torch.ones(1)
        >>> adam.step()
        >>> steps_of([adam])
        1
    """
    counts = [state.get("step") for optimizer in optimizers for state in optimizer.state.values()]
    return max((int(count) for count in counts if isinstance(count, (int, float, Tensor))), default=0)
