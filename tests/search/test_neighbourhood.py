from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from dynaquant_core.search import Manager, Quality, SearchState
from dynaquant_core.search.grid import Grid, Place
from dynaquant_core.search.neighbourhood import better_variant, paper_search
from dynaquant_core.search.quality import Goal
from dynaquant_core.search.trials import Trials
from tests.search.surfaces import Surface, cube, places, random_surface


def plane(worse_by: tuple[float, float, float], *, metric_gain: float = 0.0, start: float = 0.0) -> Surface:
    """Degradation as a plane over the steps; sensitivity better by ``metric_gain``."""
    space = cube()
    worse = {p: start + float(np.dot(worse_by, p.steps)) - metric_gain * p.variant[0] for p in places(space)}
    size = {p: 10_000 - 100 * p.steps[0] - 30 * p.steps[1] - 10 * p.steps[2] - p.variant[0] for p in worse}
    return Surface(space, worse, size)


@pytest.mark.parametrize("radius", [1, 2])
@pytest.mark.parametrize("seed", range(40))
def test_paper_rule_is_never_bolder_and_takes_the_first_that_meets(seed: int, radius: int) -> None:
    surface = random_surface(seed)
    last = places(surface.space)[int(np.random.default_rng(seed).integers(216))]
    trials = surface.trials()
    found = paper_search(trials, last, radius)
    for trial in trials.inside[2:]:
        steps = zip(trial.place.steps, last.steps, strict=True)
        assert all(0 <= before - now <= radius for now, before in steps)
    if found is None:
        variant = better_variant(trials, trials.measure(last)).place.variant
        box = Grid(surface.space).careful_box(Place(last.steps, variant), radius)
        assert not any(surface.meets(place) for place in box)
    else:
        box = list(Grid(surface.space).careful_box(Place(last.steps, found.place.variant), radius))
        meeting = [surface.size[place] for place in box if surface.meets(place)]
        assert surface.size[found.place] == min(meeting)


def test_paper_rule_measures_the_other_metric_first_and_stops_early() -> None:
    surface = plane((0.001, 0.0, 0.0))
    last = Place((3, 1, 1), (0,))
    trials = surface.trials()
    found = paper_search(trials, last, 1)
    assert found is not None
    assert found.spot == last
    assert [trial.spot for trial in trials.inside] == [last, Place((3, 1, 1), (1,))]


def test_the_metric_switches_on_a_clear_gain_only() -> None:
    last = Place((3, 1, 1), (0,))
    for gain, switched in ((0.0005, False), (0.002, True)):
        surface = plane((0.001, 0.0, 0.0), metric_gain=gain)
        trials = surface.trials()
        assert (better_variant(trials, trials.measure(last)).place.variant == (1,)) is switched


def test_a_gain_within_the_standard_error_does_not_switch() -> None:
    surface = plane((0.001, 0.0, 0.0), metric_gain=0.002)
    noise = np.array([1.0, -1.0]) * 0.02
    last = Place((3, 1, 1), (0,))

    def measure(draft: object) -> Quality:
        value = surface.measure(draft).mean  # type: ignore[arg-type]
        return Quality(tuple(value + noise))

    trials = Trials(surface.grid, surface.draft, measure, Goal(Quality((2.0, 2.0)), 0.01, "min"))
    assert better_variant(trials, trials.measure(last)).spot == last


def test_paper_profile_never_gets_bolder_while_neighbours_meet_the_threshold() -> None:
    state = SearchState()
    steps = []
    for start in (0.0, 0.002, 0.004, 0.0, 0.0, 0.0):
        surface = plane((0.0021, 0.0005, 0.0004), start=start)
        decision = Manager(profile="paper").choose(
            surface.space, surface.draft, surface.measure, surface.reference, 0.01, "min", state
        )
        state = decision.state
        place = Grid(surface.space).locate(decision.config)
        assert place is not None
        steps.append(place.steps)
    assert state.exhaustive == 1
    for before, now in pairwise(steps[1:]):
        assert all(a >= b for a, b in zip(before, now, strict=True))


def test_paper_profile_falls_back_to_the_cube() -> None:
    state = SearchState()
    exhaustive = []
    for start in (0.0, 0.0085):
        surface = plane((0.001, 0.001, 0.001), start=start)
        decision = Manager(profile="paper").choose(
            surface.space, surface.draft, surface.measure, surface.reference, 0.01, "min", state
        )
        state = decision.state
        exhaustive.append(decision.exhaustive)
        assert decision.met
        assert decision.draft.size == surface.optimum()
    assert exhaustive == [True, True]
