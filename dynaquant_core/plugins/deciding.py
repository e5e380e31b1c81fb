"""What a save will store: found by one rank, or by all of them together before one of them writes."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from dynaquant_core.plugins.agreement import Stand, await_commit, compared, deadline, rank, ranks, tell_commit
from dynaquant_core.plugins.watched import Watched
from dynaquant_core.store.saving import Saving
from dynaquant_core.store.trail import Trail
from dynaquant_core.training.choice import Choice

__all__ = ["Chosen", "Decider"]

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Chosen:
    """A save that has begun and what it will store.

    Args:
        saving: that the drafts are of.
        choice: what to store.
        gradients: that the drafts were made with.
        held: seconds that the calling thread was held, the search left out.
    """

    saving: Saving
    choice: Choice
    gradients: dict[str, Tensor] | None
    held: float


class Decider:
    """Begins saves and chooses what they store.

    Args:
        trail: that the saves are of.
        watched: model, gradients and quality.
    """

    def __init__(self, trail: Trail, watched: Watched) -> None:
        self._trail = trail
        self._watched = watched
        self._said = False  # that nothing of what is saved can be measured

    def together(
        self, step: int, tree: Any, problem: Exception | None, announce: Callable[[], None]
    ) -> Chosen | None:
        """Chooses for a save of ``step`` that follows; all ranks call it.

        Args:
            step: completed optimizer steps.
            tree: that a checkpoint can hold.
            problem: what went wrong on this rank before; it is raised here, after the others have heard.
            announce: called on the rank that writes, of several, before another can go on: a save follows.

        Returns:
            The choice on the rank that writes; None on the others, which only remember what it comes to.

        Raises:
            EvaluationError: on the ranks that do not write, once the writer has committed the exact
                checkpoint, for which it waits for none of them.  Or, with nothing committed, a rank is silent
                before the search.
            ConfigError: some ranks have an ``evaluate`` and others none.
            DynaQuantError: the save cannot begin, here or on another rank.
        """
        if ranks() == 1:
            if problem is not None:
                raise problem
            return self.alone(step, tree)
        started = time.perf_counter()
        saving, gradients = self._begin_together(step, tree, problem, announce)
        try:
            choice = self._unsearched(saving) or self._choice_together(saving)
        except BaseException:
            if rank() == 0:  # the others have heard of it, and wait for what is saved all the same
                tell_commit(step)
            raise
        if rank() == 0:
            return Chosen(saving, choice, gradients, time.perf_counter() - started - choice.search_seconds)
        self._trail.follow(saving, choice.draft)
        self._watched.begin_interval()
        if choice.error is not None:
            await_commit(step)  # a launcher ends the writer, too, once a rank has left
            raise choice.error
        return None

    def alone(self, step: int, tree: Any) -> Chosen:
        """Chooses on this rank."""
        started = time.perf_counter()
        gradients = self._watched.gradients()
        saving = self._begin(step, tree, gradients)
        self._watched.look_back(saving.live)
        choice = self._unsearched(saving) or self._watched.chooser.choose(saving)
        return Chosen(saving, choice, gradients, time.perf_counter() - started - choice.search_seconds)

    def final(self, step: int, tree: Any, chosen: Chosen | None, *, shares: bool) -> Chosen:
        """The save of ``tree`` with a choice made before, if that was for this save; else with a new one.

        Args:
            step: completed optimizer steps.
            tree: that a checkpoint can hold.
            chosen: the choice made before; None: there is none.
            shares: whether the ranks of this job search together.  Then a new choice evaluates nothing: the
                others train meanwhile, and what ``evaluate`` exchanges would meet what they exchange.
        """
        again = self._unmeasured if shares else self.alone
        if chosen is None:
            return again(step, tree)
        started = time.perf_counter()
        saving = self._begin(step, tree, chosen.gradients, like=chosen.saving)
        if not _serves(chosen, saving):
            logger.warning(
                "the state to save at step %d is not the one that was searched: %s",
                step,
                "it is not searched again" if shares else "the search is made again",
            )
            return again(step, tree)
        held = chosen.held + time.perf_counter() - started
        return Chosen(saving, chosen.choice, chosen.gradients, held)

    def _unmeasured(self, step: int, tree: Any) -> Chosen:
        """What keeps the promise without an evaluation."""
        started = time.perf_counter()
        gradients = self._watched.gradients()
        saving = self._begin(step, tree, gradients)
        choice = self._watched.chooser.unsearched(saving)
        logger.warning("the ranks have not chosen together what step %d stores: no search", step)
        return Chosen(saving, choice, gradients, time.perf_counter() - started)

    def _begin(
        self, step: int, tree: Any, gradients: dict[str, Tensor] | None, like: Saving | None = None
    ) -> Saving:
        model, optimizers = self._watched.model, self._watched.optimizers
        return self._trail.begin(
            step, tree, gradients=gradients, model=model, optimizers=optimizers, like=like
        )

    def _begin_together(
        self,
        step: int,
        tree: Any,
        problem: Exception | None,
        announce: Callable[[], None],
    ) -> tuple[Saving, dict[str, Tensor] | None]:
        """Begins the save on every rank against the same base, or on none against any; also the gradients."""
        saving, gradients = None, None
        if problem is None:
            try:
                gradients = self._watched.gradients()
                saving = self._begin(step, tree, gradients)
                self._watched.look_back(saving.live)
            except Exception as error:  # noqa: BLE001 - raised below, when the others know
                saving, problem = None, error
        stands = compared(step, self._stand(saving, problem), announce)
        if saving is None:
            assert problem is not None
            raise problem
        first = stands[0]
        if len({stand.method for stand in stands}) > 1:
            saving = self._begin_as_asked(step, tree, gradients)
        # Where nothing is drafted none but the writer holds a base, and its own serves.
        if not saving.live or {stand.lineage for stand in stands} == {first.lineage}:
            sizes = {"key_bytes": first.key_bytes, "newest_bytes": first.newest_bytes}
            self._trail.share(saving, **sizes, spared=first.spared)
        else:
            logger.info("the ranks hold different bases, so step %d is written as a key", step)
            saving.base = None
        return saving, gradients

    def _begin_as_asked(self, step: int, tree: Any, gradients: dict[str, Tensor] | None) -> Saving:
        """Begins the save with the method of the options, which are the same on all ranks.

        A rank that loaded a checkpoint goes on with that one's method; the others may know of none.
        """
        self._trail.leave_method()
        self._watched.use_method(self._trail.method)
        saving = self._begin(step, tree, gradients)
        self._watched.look_back(saving.live)
        return saving

    def _unsearched(self, saving: Saving) -> Choice | None:
        """What to store where there is nothing to search, or no way to; None: the search decides."""
        if not saving.live:
            return Choice(saving.draft())  # everything is exact
        if self._watched.sees(saving.live):
            return None
        if not self._said:
            self._said = True
            logger.warning(
                "no search at step %d: nothing in the state to save is of the model that evaluate measures "
                "(it is another's, or copied by a hook), so such checkpoints are exact, and larger",
                saving.step,
            )
        return self._watched.chooser.unsearched(saving)

    def _choice_together(self, saving: Saving) -> Choice:
        from dynaquant_core.plugins.parallel import choose_together  # not every torch is built for it

        return choose_together(self._watched.chooser, saving, deadline())

    def _stand(self, saving: Saving | None, problem: Exception | None) -> Stand:
        if saving is None:
            assert problem is not None
            return Stand.failed(problem)
        method = f"{self._trail.method.name} {sorted(self._trail.method.options().items())}"
        measures = self._watched.measures if saving.live else None
        if (base := saving.base) is None:
            return Stand(method=method, measures=measures)
        sizes = base.key_bytes, base.newest_bytes, base.spared
        return Stand(self._trail.lineage, *sizes, method, measures)


def _serves(chosen: Chosen, saving: Saving) -> bool:
    """Whether a choice is one for this save: of the same tensors, against the same base."""
    mine, theirs = saving.live, chosen.saving.live
    same = list(mine) == list(theirs) and all(mine[name].is_set_to(theirs[name]) for name in mine)
    return same and (chosen.choice.draft.is_key or chosen.saving.base is saving.base)
