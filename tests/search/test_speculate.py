"""Looking ahead changes how many rounds a search takes, and nothing else about it."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from typing import Any

import pytest

from dynaquant_core.errors import ConfigError, EvaluationError
from dynaquant_core.search import Decision, Manager, Quality, SearchState
from dynaquant_core.search.speculate import SIZES, Speculation
from tests.search.surfaces import BEYOND, Drifting, FakeDraft, Surface, cube, places, random_surface

RANKS = (1, 2, 3, 4, 5, 6, 7, 8)


class Crew:
    """Measures as many candidates a round as it has members."""

    def __init__(self, search: Speculation, measure: Callable[[Any], Quality], members: int) -> None:
        self.search, self.measure, self.members = search, measure, members
        self.rounds: list[list[Any]] = []

    def decide(self) -> Decision:
        while (decision := self.search.decision()) is None:
            spots = self.search.ahead(self.members)
            self.rounds.append([self.search.config(spot) for spot in spots])
            for spot, config in zip(spots, self.rounds[-1], strict=True):
                self.search.answer(spot, self.measure(config))
        return decision


def crew_for(surface: Surface, members: int, state: SearchState | None = None) -> Crew:
    search = Speculation(
        Manager(),
        surface.space,
        lambda config: surface.draft(config).size,
        surface.threshold,
        "min",
        state or SearchState(),
    )
    search.reference = surface.reference
    return Crew(search, lambda config: surface.measure(FakeDraft(config, 0)), members)


def alone(surface: Surface, state: SearchState | None = None) -> Decision:
    return Manager().choose(
        surface.space, surface.draft, surface.measure, surface.reference, surface.threshold, "min",
        state or SearchState(),
    )  # fmt: skip


def essence(decision: Decision) -> tuple[Any, ...]:
    """All of a decision but its draft."""
    return (
        decision.config, decision.quality, decision.degradation, decision.met, decision.beyond,
        decision.evaluations, decision.exhaustive, decision.state,
    )  # fmt: skip


@pytest.mark.parametrize("members", RANKS)
def test_the_choice_is_the_lone_search_s(members: int) -> None:
    for seed in range(members - 1, 200, len(RANKS)):
        surface = random_surface(seed)
        crew = crew_for(surface, members)
        assert essence(crew.decide()) == essence(alone(surface)), seed
        assert all(len(configs) <= members for configs in crew.rounds)


def test_one_member_measures_what_the_lone_search_does_in_that_order() -> None:
    surface = random_surface(4)
    alone(surface)
    expected = surface.measured.copy()
    crew = crew_for(surface, 1)
    crew.decide()
    assert [config for (config,) in crew.rounds] == expected


def test_every_round_answers_the_question_of_the_moment() -> None:
    """Else rounds could pass without getting on."""
    surface = random_surface(11)
    crew = crew_for(surface, 8)
    evaluations = crew.decide().evaluations
    assert len(crew.rounds) <= evaluations
    measured = [str(config) for configs in crew.rounds for config in configs]
    assert len(measured) == len(set(measured))


def run_of_ten(run: Drifting, members: int) -> list[tuple[Decision, int]]:
    """Decisions and rounds of ten checkpoints, each compared with the lone search."""
    state, found = SearchState(), []
    for _ in range(10):

        def measure(config: Any) -> Quality:
            return run.measure(FakeDraft(config, 0))

        search = Speculation(Manager(), run.space, run.size, 0.01, "min", state)
        search.reference = Quality((2.0,))
        crew = Crew(search, measure, members)
        decision = crew.decide()
        lone = Manager().choose(run.space, run.draft, run.measure, Quality((2.0,)), 0.01, "min", state)
        assert essence(decision) == essence(lone)
        found.append((decision, len(crew.rounds)))
        state = decision.state
        run.step(decision.config)
    return found


def test_eight_ranks_take_one_round_in_steady_state(capsys: pytest.CaptureFixture[str]) -> None:
    evaluations, rounds = [], []
    for seed in range(10):
        run = Drifting(seed, growth=(1.0, 1.0))
        run.jitter = 0.0
        steady = [(d.evaluations, n) for d, n in run_of_ten(run, 8) if not d.exhaustive]
        evaluations += [made for made, _ in steady]
        rounds += [n for _, n in steady]
    with capsys.disabled():
        print(  # noqa: T201 - a figure that people quote
            f"\nsteady state, {len(rounds)} checkpoints: {statistics.mean(evaluations):.2f} candidates one "
            f"after the other, {statistics.mean(rounds):.2f} rounds of 8 ranks (most {max(rounds)})"
        )
    assert statistics.quantiles(rounds, n=20)[18] == 1  # 95 in 100
    assert max(evaluations) > 1


@pytest.mark.parametrize("seed", range(6))
def test_more_ranks_take_fewer_rounds_while_a_run_drifts(seed: int) -> None:
    rounds = {members: sum(n for _, n in run_of_ten(Drifting(seed), members)) for members in (1, 8)}
    assert rounds[8] < rounds[1]


def test_the_way_beyond_the_cube_is_seen_ahead() -> None:
    space = cube()
    surface = Surface(
        space, dict.fromkeys(places(space), 1.0), dict.fromkeys(places(space), 5), beyond_worse=(1, 1, 0, 0)
    )
    state = SearchState(beyond=0, best=surface.grid.settings(places(space)[0]))
    crew = crew_for(surface, 4, state)
    decision = crew.decide()
    assert (decision.config, decision.beyond) == (BEYOND[2], True)
    assert len(crew.rounds) < decision.evaluations == 3


def test_looking_ahead_needs_no_reference_and_asks_for_few_sizes() -> None:
    """The first round can be measured beside the reference."""
    surface = random_surface(2)
    state = alone(surface).state
    surface.sized.clear()
    crew = crew_for(surface, 8, state)
    crew.search.reference = None
    first = crew.search.ahead(8)
    assert len(first) > 1
    assert len(surface.sized) <= SIZES
    with pytest.raises(ConfigError, match="reference"):
        crew.search.decision()
    for spot in first:
        crew.search.answer(spot, crew.measure(crew.search.config(spot)))
    crew.search.reference = surface.reference
    assert essence(crew.decide()) == essence(alone(surface, state))


def test_a_reference_that_is_not_finite_is_refused_as_in_the_lone_search() -> None:
    crew = crew_for(random_surface(0), 2)
    crew.search.reference = Quality((float("nan"),))
    with pytest.raises(EvaluationError, match="not finite"):
        crew.search.decision()
