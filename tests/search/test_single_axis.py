"""A space of one axis, as `lattice` has it: bisection first, then few trials."""

from __future__ import annotations

import math
import statistics
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from dynaquant_core.config import LatticeConfig
from dynaquant_core.methods.lattice import Lattice
from dynaquant_core.search import Decision, Manager, Quality, SearchState
from dynaquant_core.search.grid import Grid
from dynaquant_core.search.guided import search_cube
from dynaquant_core.search.quality import Goal
from dynaquant_core.search.trials import Trials
from dynaquant_core.training.resume import search_state

SPACE = replace(Lattice().space(gradients=False), by_learnt=False)  # that has tests of its own
SCALES = SPACE.axes["scale"]
THRESHOLD = 0.01


class Line:
    """A run whose degradation grows with the square of the scale, up to what the batches add to it.

    Args:
        limit: the scale that just meets the threshold.
        noise: standard deviation of the logarithm of a measured degradation.
        drift: the same of the limit's, a checkpoint.
    """

    def __init__(self, limit: float, noise: float = 0.0, drift: float = 0.0, seed: int = 0) -> None:
        self.limit, self.noise, self.drift, self.seed = limit, noise, drift, seed
        self.checkpoint = 0
        self.measured: list[float] = []

    def draft(self, config: LatticeConfig) -> SimpleNamespace:
        bits = 20.0 if isinstance(config.scale, str) else 6.0 - math.log2(config.scale)
        return SimpleNamespace(config=config, size=int(1e6 * bits), is_key=False)

    def worse(self, scale: float | str) -> float:
        if isinstance(scale, str):
            return 0.0
        rng = np.random.default_rng([self.seed, self.checkpoint, int(1e6 * scale)])
        return THRESHOLD * (scale / self.limit) ** 2 * math.exp(self.noise * rng.normal())

    def measure(self, draft: SimpleNamespace) -> Quality:
        self.measured.append(draft.config.scale)
        return Quality((2.0 * (1 + self.worse(draft.config.scale)),))

    def trials(self) -> Trials:
        return Trials(Grid(SPACE), self.draft, self.measure, Goal(Quality((2.0,)), THRESHOLD, "min"))

    def choose(self, state: SearchState) -> Decision:
        self.measured = []
        decision = Manager().choose(SPACE, self.draft, self.measure, Quality((2.0,)), THRESHOLD, "min", state)
        self.checkpoint += 1
        rng = np.random.default_rng([self.seed, self.checkpoint])
        self.limit *= math.exp(self.drift * rng.normal())
        return decision


@pytest.mark.parametrize("place", range(-1, len(SCALES)))
def test_bisection_finds_the_boldest_place_in_six_trials(place: int) -> None:
    line = Line(1.02 * SCALES[place] if place >= 0 else 0.5 * SCALES[0])
    trials = line.trials()
    found = search_cube(trials)
    assert (None if found is None else found.place.steps) == (None if place < 0 else (place,))
    assert trials.evaluations <= 6
    assert len(set(line.measured)) == len(line.measured) == trials.evaluations


@pytest.mark.parametrize("seed", range(20))
def test_bisection_keeps_the_promise_where_the_line_is_not_monotone(seed: int) -> None:
    line = Line(0.5, noise=1.0, seed=seed)
    found = search_cube(line.trials())
    assert found is not None
    assert found.degradation.mean <= THRESHOLD
    assert found.place.steps == (
        max(SCALES.index(scale) for scale in line.measured if line.worse(scale) <= THRESHOLD),
    )


def test_what_no_scale_meets_goes_beyond() -> None:
    decision = Line(1e-4).choose(SearchState())
    assert decision.beyond
    assert decision.config.scale == "bf16"
    assert decision.evaluations <= 6 + 3


@pytest.mark.parametrize(("noise", "drift"), [(0.0, 0.0), (0.05, 0.03), (0.15, 0.06), (0.05, 0.15)])
def test_steady_state_takes_two_trials(noise: float, drift: float) -> None:
    counts, over = [], []
    for seed in range(12):
        line, state = Line(0.4, noise, drift, seed), SearchState()
        for checkpoint in range(20):
            limit = line.limit
            decision = line.choose(state)
            state = decision.state
            assert decision.met
            if checkpoint:
                counts.append(decision.evaluations)
                over.append(decision.draft.size / line.draft(LatticeConfig(scale=limit)).size)
    assert statistics.median(counts) <= 2
    assert statistics.mean(counts) <= 2.5
    assert statistics.median(over) <= 1.1


def test_the_scale_shrinks_by_a_step_where_a_little_more_is_asked_for() -> None:
    line = Line(0.4)
    first = line.choose(SearchState())
    line.limit *= 0.9
    second = line.choose(first.state)
    assert SCALES.index(first.config.scale) - SCALES.index(second.config.scale) == 1
    assert second.evaluations == 2


def resumed(state: SearchState) -> SearchState:
    """What a run begins with that was restored from a checkpoint with this search state."""
    return search_state(SimpleNamespace(report={"search_state": state.as_dict()}))  # type: ignore[arg-type]


def test_after_a_restore_growth_is_tried_at_once() -> None:
    """A restored run has moved little since, so far more noise does no harm."""
    line = Line(0.4)
    state = line.choose(SearchState()).state
    state = line.choose(state).state
    line.limit = 1.2
    stays = Line(1.2).choose(replace(state, since_probe=0, eager=False))
    grown = line.choose(resumed(state))
    assert max(line.measured) > 1.2 * state.best["scale"]  # type: ignore[index]
    assert grown.config.scale > 1.2 * state.best["scale"]  # type: ignore[index]
    assert grown.met
    assert grown.evaluations <= 3
    assert grown.draft.size <= stays.draft.size


def test_growth_is_tried_after_a_restore_even_where_it_fails() -> None:
    line = Line(0.4)
    state = line.choose(SearchState()).state
    again = line.choose(resumed(state))
    assert max(line.measured) > state.best["scale"]  # type: ignore[index]
    assert again.config.scale == state.best["scale"]  # type: ignore[index]
    assert again.evaluations == 2
    assert not again.state.eager


class Spiky(Line):
    """A line on which, at some scales, measured degradations are worse than they should be."""

    def __init__(self, limit: float, spikes: dict[float, float]) -> None:
        super().__init__(limit)
        self.spikes = spikes

    def worse(self, scale: float | str) -> float:
        spike = self.spikes.get(scale) if isinstance(scale, float) else None
        return super().worse(scale) if spike is None else THRESHOLD * spike


def after_spikes(limit: float, *spikes: float) -> tuple[Decision, Spiky]:
    """A checkpoint whose scales failed from the last best on, each by a measured share of the threshold."""
    line = Spiky(limit, {})
    state = line.choose(SearchState()).state
    last = SCALES.index(line.choose(state).config.scale)
    line.spikes = {SCALES[last - number]: spike for number, spike in enumerate(spikes)}
    return line.choose(state), line


def test_a_long_stride_is_retraced() -> None:
    """As on a ViT: the last best misses by a tenth, the next by more than three times, by mere chance."""
    decision, line = after_spikes(4.0, 1.09, 3.4)
    tried = [SCALES.index(scale) for scale in line.measured]
    assert tried[1] == tried[0] - 1
    assert tried[2] <= tried[1] - 5  # the stride
    assert SCALES.index(decision.config.scale) >= tried[1] - 2
    assert decision.met
    assert decision.evaluations <= 5


def test_a_stride_that_was_needed_is_not_retraced() -> None:
    line = Line(4.0)
    state = line.choose(SearchState()).state
    line.limit = 1.8
    decision = line.choose(state)
    assert decision.met
    assert decision.evaluations == 2
    assert decision.config.scale > 1.4


@pytest.mark.parametrize("seed", range(8))
def test_what_a_retrace_ends_with_was_measured_and_met(seed: int) -> None:
    rng = np.random.default_rng(seed)
    decision, line = after_spikes(4.0, *np.exp(rng.normal(0.7, 0.8, 12)).tolist())
    assert decision.met
    assert decision.config.scale in line.measured
    assert line.worse(decision.config.scale) <= THRESHOLD
