from __future__ import annotations

import gc
import statistics
import weakref

import numpy as np
import pytest

from dynaquant_core.methods.base import Space
from dynaquant_core.search.grid import Grid, Place
from dynaquant_core.search.guided import search_cube
from dynaquant_core.search.quality import Goal, Quality
from dynaquant_core.search.trials import Trials
from tests.search.surfaces import Surface, cube, places, random_surface


def test_equals_the_exhaustive_optimum_with_few_candidates(capsys: pytest.CaptureFixture[str]) -> None:
    evaluated, sized = [], []
    for seed in range(500):
        surface = random_surface(seed)
        trials = surface.trials()
        found = search_cube(trials)
        assert (None if found is None else trials.size(found.spot)) == surface.optimum(), seed
        evaluated.append(trials.evaluations)
        sized.append(trials.sized)
    with capsys.disabled():
        print(  # noqa: T201 - a figure that people quote
            f"\nguided search, 500 surfaces of 216: median {statistics.median(evaluated)} candidates "
            f"evaluated (most {max(evaluated)}), median {statistics.median(sized)} sized"
        )
    assert statistics.median(evaluated) <= 45


@pytest.mark.parametrize("seed", range(20))
def test_never_measures_what_is_not_smaller_than_the_best_so_far(seed: int) -> None:
    surface = random_surface(seed)
    trials = surface.trials()
    search_cube(trials)
    bound = float("inf")
    for trial in trials.inside:
        assert surface.size[trial.place] < bound
        if trial.met:
            bound = surface.size[trial.place]


@pytest.mark.parametrize("seed", range(100))
def test_keeps_the_promise_where_the_surface_is_not_monotone(seed: int) -> None:
    rng = np.random.default_rng(seed)
    space = cube()
    noise = {place: 0.02 * rng.random() + 0.01 * rng.normal() for place in places(space)}
    surface = Surface(space, noise, {place: int(rng.integers(1, 10**6)) for place in noise})
    trials = surface.trials()
    found = search_cube(trials)
    met = [trial for trial in trials.inside if surface.meets(trial.place)]
    assert (found is None) == (not met)
    if found is not None:
        assert trials.known(found.spot) is not None
        assert surface.worse[found.place] <= surface.threshold
        assert surface.size[found.place] == min(surface.size[trial.place] for trial in met)


def test_a_candidate_without_a_finite_quality_does_not_meet_the_threshold() -> None:
    surface = random_surface(3)
    bold = {place for place in surface.worse if place.steps[0] >= 3}
    surface.worse.update(dict.fromkeys(bold, float("nan")))
    found = search_cube(surface.trials())
    assert found is not None
    assert found.place not in bold


def test_goes_on_from_what_was_measured_at_this_checkpoint() -> None:
    surface = random_surface(5)
    fresh = surface.trials()
    best = search_cube(fresh)
    assert best is not None
    trials = surface.trials()
    trials.measure(best.spot)
    again = search_cube(trials)
    assert again is not None
    assert trials.size(again.spot) == fresh.size(best.spot)
    assert (
        len({tuple(config.items()) for config in surface.measured[-trials.evaluations :]})
        == trials.evaluations
    )


@pytest.mark.parametrize("kept", [True, False])
def test_refined_axis_is_tried_on_the_winner_only(kept: bool) -> None:
    space = cube(embedding=True)
    worse = {p: 0.004 * p.steps[0] + (0.0 if kept else 1.0) * p.steps[3] for p in places(space)}
    size = {p: 1000 - 50 * p.steps[0] - p.steps[1] - p.steps[2] - 10 * p.steps[3] for p in worse}
    surface = Surface(space, worse, size)
    trials = surface.trials()
    found = search_cube(trials)
    assert found is not None
    assert trials.grid.config(found.spot)["embedding"] == (16 if kept else 32)
    assert found.place.steps[0] == 2
    assert sum(config["embedding"] == 16 for config in surface.measured) == 1


def test_a_refined_value_that_saves_nothing_is_not_measured() -> None:
    space = cube(embedding=True)
    surface = Surface(
        space, dict.fromkeys(places(space), 0.0), {p: 100 - sum(p.steps[:3]) for p in places(space)}
    )
    found = search_cube(surface.trials())
    assert found is not None
    assert found.place.steps == (5, 2, 5, 0)
    assert all(config["embedding"] == 32 for config in surface.measured)


def test_a_space_of_one_candidate() -> None:
    class Draft:
        config, size, is_key = None, 7, True

    space = Space(dict, {}, {}, {}, ({},), None)
    for quality, expected in ((1.0, Place((), ())), (2.0, None)):
        goal = Goal(Quality((1.0,)), 0.01, "min")
        trials = Trials(Grid(space), lambda _: Draft(), lambda _, q=quality: Quality((q,)), goal)
        found = search_cube(trials)
        assert (None if found is None else found.spot) == expected


def test_at_most_two_drafts_are_alive() -> None:
    surface = random_surface(8)
    alive: weakref.WeakSet[object] = weakref.WeakSet()
    most = 0

    class Tracked:
        is_key = True

        def __init__(self, config: dict[str, object]) -> None:
            self.config = config
            self.size = surface.draft(config).size
            alive.add(self)

    def measure(draft: Tracked) -> Quality:
        nonlocal most
        gc.collect()
        most = max(most, len(alive))
        return surface.measure(draft)  # type: ignore[arg-type]

    trials = Trials(surface.grid, Tracked, measure, Goal(surface.reference, 0.01, "min"))  # type: ignore[arg-type]
    search_cube(trials)
    assert trials.evaluations > 3
    assert most <= 2


def test_places_with_equal_configs_are_measured_once() -> None:
    def build(bins: int, prune: float, metric: str) -> tuple[int, float, str]:
        return (bins, prune, metric if prune else "none")

    class Draft:
        is_key = True

        def __init__(self, config: tuple[int, float, str]) -> None:
            self.config = config
            self.size = config[0]

    measured = []

    def measure(draft: Draft) -> Quality:
        measured.append(draft.config)
        return Quality((1.0 if draft.config[1] == 0 and draft.config[0] > 4 else 2.0,))

    space = Space(build, {"bins": (16, 8, 4), "prune": (0.0, 0.1)}, {"metric": ("m", "s")}, {}, ((),), None)
    trials = Trials(Grid(space), Draft, measure, Goal(Quality((1.0,)), 0.01, "min"))  # type: ignore[arg-type]
    found = search_cube(trials)
    assert found is not None
    assert trials.grid.config(found.spot) == (8, 0.0, "none")
    flipped = trials.measure(Place(found.place.steps, (1,)))
    assert flipped.met
    assert trials.evaluations == len(measured) == len(set(measured))
