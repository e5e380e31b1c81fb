"""The search manager: one call a checkpoint, from the state of the last search to a decision."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Literal

from dynaquant_core.config import require, require_choice
from dynaquant_core.methods.base import Draft, Space
from dynaquant_core.search.decision import Decision, announce
from dynaquant_core.search.forecast import Forecast
from dynaquant_core.search.grid import CAREFUL, Grid, Place
from dynaquant_core.search.learnt import learnt, with_naught
from dynaquant_core.search.memory import SearchState
from dynaquant_core.search.neighbourhood import paper_search
from dynaquant_core.search.quality import Goal, Mode, Quality
from dynaquant_core.search.steady import Found, from_beyond, from_last_best, whole_cube
from dynaquant_core.search.trials import Trials

__all__ = ["Decision", "Manager", "announce", "remembered"]

#: Checkpoints from one exhaustive search to the next, at least: three in ten checkpoints.
CUBE_SPACING = 4
#: Checkpoints beyond the cube before the way back is tried.
RETURN_EVERY = 4


class Manager:
    """Chooses the smallest configuration that keeps the threshold, with few evaluations.

    The first checkpoint searches the whole cube, guided.  Afterwards the last best is measured first and kept
    while it meets the threshold; every ``probe_every`` checkpoints something smaller is tried too; when it
    fails, its neighbours are tried, then the cube (at most every fourth checkpoint; in between
    straight down to its most careful place), then `Space.beyond`, whose last entry is exact.

    Where every candidate is as good as the reference, bit for bit, the choice is measured once more, spoilt,
    unless evaluate gave another value before.  If it gives none now, it does not depend on what is stored,
    and `Space.default` is the choice.

    Args:
        radius: steps per axis that count as near.
        probe_every: checkpoints between two bolder probes.
        profile: None, or ``"paper"``: the published rules (paper sec. 5.2) without our probes and limits.

    Raises:
        ConfigError: an argument is out of range.

    Example:
        >>> from dynaquant_core.search.quality import Quality
        >>> class Sized:
        ...     def __init__(self, config):
        ...         self.config, self.size = config, 100 * config["bins"]
        >>> space = Space(dict, {"bins": (16, 8, 4)}, {}, {}, ({"bins": "exact"},), None)
        >>> decision = Manager().choose(
        ...     space, Sized, lambda draft: Quality((1 + 0.1 / draft.config["bins"],)),
        ...     Quality((1.0,)), 0.02, "min", SearchState())
        >>> decision.config, decision.met, decision.evaluations
        ({'bins': 8}, True, 2)
    """

    def __init__(
        self, *, radius: int = 1, probe_every: int = 3, profile: Literal["paper"] | None = None
    ) -> None:
        require_choice("search", "profile", profile, (None, "paper"))
        for name, value in (("radius", radius), ("probe_every", probe_every)):
            good = isinstance(value, int) and not isinstance(value, bool) and value >= 1
            require(good, f"search: {name} must be a whole number from 1 up, got {value!r}.")
        self.radius = radius
        self.probe_every = probe_every
        self.profile = profile

    def choose(
        self,
        space: Space,
        draft: Callable[[Any], Draft],
        measure: Callable[[Draft], Quality],
        reference: Quality,
        threshold: float,
        mode: Mode,
        state: SearchState,
    ) -> Decision:
        """Searches ``space`` for the checkpoint at hand.

        Args:
            space: of the method; its ``beyond`` ends with an exact entry.
            draft: makes the draft of a config; may be called more than once for the same config.
            measure: evaluates a draft's decoded tensors on the search batches.
            reference: the uncompressed model's quality on the same batches.
            threshold: allowed relative degradation, a share (0.01 = 1%).
            mode: "min" or "max".
            state: of the last search; ``SearchState()`` at the first.

        Raises:
            EvaluationError: the reference is not finite, or ``measure`` raised it.
            ConfigError: threshold, mode or space is out of range.
        """
        require(
            bool(space.beyond), "search: the method's space has no entry beyond its cube; add an exact one."
        )
        trials = Trials(Grid(space), draft, measure, Goal(reference, threshold, mode))
        decision = self.decide(trials, state)
        announce(decision)
        return decision

    def decide(self, trials: Trials, state: SearchState) -> Decision:
        """The search itself, which depends on nothing but ``state`` and the answers of ``trials``."""
        if trials.grid.space.by_learnt:
            state = with_naught(trials, state, _first_place(trials.grid))
            share = learnt(trials.goal.reference.mean, state.naught, trials.goal.mode)
            trials.goal = replace(trials.goal, threshold=share * trials.goal.threshold)
        forecast = remembered(state, trials.grid)
        found = self._search(trials, forecast, state)
        sees, blind = _sight(trials, found, state)
        following = replace(_next_state(trials, forecast, state, found), sees=sees)
        decision = replace(_decision(trials, found, following), said=state.beyond is not None)
        return _blind(trials, decision, said=state.sees is False) if blind else decision

    def _search(self, trials: Trials, forecast: Forecast, state: SearchState) -> Found:
        """Picks the strategy that the state of the last search asks for."""
        last = None if state.best is None else trials.grid.locate(state.best)
        cube_allowed = self.profile == "paper" or state.since_exhaustive + 1 >= CUBE_SPACING
        if state.beyond is not None:
            start = last or _first_place(trials.grid)
            due = state.eager or state.since_probe + 1 >= RETURN_EVERY
            return from_beyond(trials, forecast, start, state.beyond, due=due, cube_allowed=cube_allowed)
        if last is None:
            return whole_cube(trials)
        if self.profile == "paper":
            near = paper_search(trials, last, self.radius)
            return whole_cube(trials) if near is None else Found(near)
        due = state.eager or state.since_probe + 1 >= self.probe_every
        radius = max(self.radius, trials.grid.space.near)
        return from_last_best(trials, forecast, last, radius=radius, due=due, cube_allowed=cube_allowed)


def _first_place(grid: Grid) -> Place:
    return Place((0,) * len(grid.shape), grid.variants[0])


def remembered(state: SearchState, grid: Grid) -> Forecast:
    """What the last search learnt about the space; the prior where the space has changed."""
    prior = Forecast.prior(grid)
    remembered = Forecast(state.rises, state.gaps, prior.least)
    return remembered if remembered.fits(grid) else prior


def _next_state(trials: Trials, forecast: Forecast, state: SearchState, found: Found) -> SearchState:
    """What the next search should know."""
    grid, spot = trials.grid, found.trial.spot
    learnt = forecast.learnt(trials.inside, trials.goal, grid.variants)
    inside = isinstance(spot, Place)
    return replace(
        state,
        best=grid.settings(spot) if isinstance(spot, Place) else state.best,
        beyond=None if isinstance(spot, Place) else spot,
        checkpoints=state.checkpoints + 1,
        exhaustive=state.exhaustive + found.exhaustive,
        since_exhaustive=0 if found.exhaustive else state.since_exhaustive + 1,
        since_probe=0 if found.probed else state.since_probe + 1,
        eager=found.eager and inside,
        rises=learnt.rises,
        gaps=learnt.gaps,
    )


def _sight(trials: Trials, found: Found, state: SearchState) -> tuple[bool | None, bool]:
    """Whether evaluate is known to depend on what is stored, and whether this choice shows that it does not.

    It is asked again as long as it did not: a metric may stand still early in training.
    """
    spot = found.trial.spot
    if state.sees or not trials.all_alike:
        return True, False
    if not isinstance(spot, Place) or not trials.is_bold(spot):
        return state.sees, False
    seen = trials.is_seen(spot)
    return seen, not seen


def _blind(trials: Trials, decision: Decision, *, said: bool) -> Decision:
    """The decision without an evaluation that can be relied on; the search's state stays what it learnt."""
    return replace(
        decision,
        draft=trials.draft(CAREFUL),
        config=trials.grid.config(CAREFUL),
        met=False,
        evaluations=trials.evaluations,
        blind=True,
        said=said,
    )


def _decision(trials: Trials, found: Found, state: SearchState) -> Decision:
    trial = found.trial
    return Decision(
        draft=trials.draft(trial.spot),
        config=trials.grid.config(trial.spot),
        quality=trial.quality,
        degradation=trial.degradation,
        met=trial.met,
        beyond=not isinstance(trial.spot, Place),
        evaluations=trials.evaluations,
        exhaustive=found.exhaustive,
        state=state,
        allowed=trials.goal.threshold,
    )
