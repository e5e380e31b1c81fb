from __future__ import annotations

import logging

import pytest

from dynaquant_core.errors import ConfigError, EvaluationError
from dynaquant_core.methods.base import Space
from dynaquant_core.search import Decision, Manager, Quality, SearchState
from tests.search.surfaces import BEYOND, Surface, cube, places


def flat(worse: float, beyond: tuple[float, ...] = (0.0, 0.0, 0.0, 0.0)) -> Surface:
    """A surface whose most careful place is ``worse`` and whose others are worse still."""
    space = cube()
    steps = {p: sum(p.steps) for p in places(space)}
    return Surface(
        space,
        {p: worse + 0.001 * n for p, n in steps.items()},
        {p: 1000 - n for p, n in steps.items()},
        beyond_worse=beyond,
    )


def choose(surface: Surface, state: SearchState) -> Decision:
    return Manager().choose(
        surface.space, surface.draft, surface.measure, surface.reference, surface.threshold, "min", state
    )


@pytest.mark.parametrize("first_met", range(4))
def test_goes_beyond_the_cube_and_says_so(first_met: int, caplog: pytest.LogCaptureFixture) -> None:
    surface = flat(0.05, tuple(0.0 if i >= first_met else 0.02 for i in range(4)))
    with caplog.at_level(logging.WARNING, "dynaquant_core.search"):
        decision = choose(surface, SearchState())
    assert (decision.config, decision.beyond, decision.met) == (BEYOND[first_met], True, True)
    assert "no configuration" in caplog.text
    assert decision.degradation.mean <= surface.threshold


def test_the_exact_entry_needs_no_measurement() -> None:
    surface = flat(0.05, (1.0, 1.0, 1.0, 1.0))
    decision = choose(surface, SearchState())
    assert decision.config == {"bins": "exact"}
    assert {"bins": "exact"} not in surface.measured
    assert decision.quality == surface.reference


def test_a_cube_that_meets_nowhere_is_left_after_few_measurements() -> None:
    assert choose(flat(0.05), SearchState()).evaluations <= 12


def test_stays_beyond_with_few_measurements_and_no_exhaustive_search() -> None:
    state = choose(flat(0.05), SearchState()).state
    evaluations = []
    for _ in range(9):
        decision = choose(flat(0.05), state)
        state = decision.state
        evaluations.append(decision.evaluations)
        assert decision.config == BEYOND[0]
    assert state.exhaustive == 1
    assert sorted(evaluations)[4] == 1
    assert max(evaluations) == 2


def test_a_harder_checkpoint_goes_further_beyond_and_comes_back() -> None:
    state = choose(flat(0.05), SearchState()).state
    harder = choose(flat(0.05, (0.02, 0.02, 0.0, 0.0)), state)
    assert harder.config == BEYOND[2]
    state = harder.state
    seen = []
    for _ in range(12):
        decision = choose(flat(0.05), state)
        state = decision.state
        seen.append(decision.config)
    assert BEYOND[0] in seen


def test_comes_back_into_the_cube_when_it_meets_the_threshold_again() -> None:
    state = choose(flat(0.05), SearchState()).state
    decisions = []
    for _ in range(8):
        decisions.append(choose(flat(0.0), state))
        state = decisions[-1].state
    assert not decisions[-1].beyond
    assert state.exhaustive <= 2
    assert decisions[-1].draft.size == flat(0.0).optimum()


def test_a_last_best_that_fails_ends_beyond_where_the_cube_fails() -> None:
    state = choose(flat(0.0), SearchState()).state
    decision = choose(flat(0.05), state)
    assert decision.beyond
    assert decision.met
    assert decision.evaluations <= 12


def test_what_measure_raises_goes_through() -> None:
    surface = flat(0.0)

    def broken(draft: object) -> Quality:
        raise EvaluationError("evaluate raised ValueError('no data').")

    with pytest.raises(EvaluationError, match="no data"):
        Manager().choose(surface.space, surface.draft, broken, surface.reference, 0.01, "min", SearchState())


def test_every_candidate_is_nan_so_the_exact_entry_is_taken() -> None:
    surface = flat(0.0)
    nan = Quality((float("nan"),))
    decision = Manager().choose(
        surface.space, surface.draft, lambda _: nan, surface.reference, 0.01, "min", SearchState()
    )
    assert decision.config == {"bins": "exact"}
    assert decision.met


def test_a_reference_that_is_not_finite_is_an_error_before_anything_is_drafted() -> None:
    surface = flat(0.0)
    with pytest.raises(EvaluationError, match="not finite"):
        Manager().choose(
            surface.space,
            surface.draft,
            surface.measure,
            Quality((float("nan"),)),
            0.01,
            "min",
            SearchState(),
        )
    assert surface.sized == []


def test_a_space_without_an_exact_end_is_refused() -> None:
    space = Space(dict, {"bins": (8,)}, {}, {}, (), None)
    surface = flat(0.0)
    with pytest.raises(ConfigError, match="exact"):
        Manager().choose(space, surface.draft, surface.measure, surface.reference, 0.01, "min", SearchState())


@pytest.mark.parametrize(
    "arguments", [{"radius": 0}, {"radius": 1.5}, {"probe_every": 0}, {"profile": "best"}]
)
def test_bad_settings_are_refused(arguments: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match="search"):
        Manager(**arguments)  # type: ignore[arg-type]
