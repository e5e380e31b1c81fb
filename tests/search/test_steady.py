from __future__ import annotations

import json
import statistics
import zlib

import numpy as np
import pytest

from dynaquant_core.search import Decision, Manager, Quality, SearchState
from tests.search.surfaces import Drifting, Surface, cube, places


def ten_checkpoints(run: Drifting, threshold: float) -> tuple[list[Decision], list[float]]:
    """A run of ten; the decisions, and the bytes over the optimum's where the space has one."""
    state, decisions, over = SearchState(), [], []
    for _ in range(10):
        state = SearchState.from_dict(json.loads(json.dumps(state.as_dict())))
        decision = Manager().choose(
            run.space, run.draft, run.measure, Quality((2.0,)), threshold, "min", state
        )
        assert decision.met
        assert run.worse(decision.config) <= threshold * (1 + 1e-9)
        best = run.best_size(threshold)
        assert decision.beyond or best is not None
        if best is not None:
            over.append(run.size(decision.config) / best)
        state = decision.state
        decisions.append(decision)
        run.step(decision.config)
    return decisions, over


@pytest.mark.parametrize("threshold", [0.05, 0.01, 0.001])
def test_drifting_runs_take_few_evaluations(threshold: float, capsys: pytest.CaptureFixture[str]) -> None:
    medians, exhaustive, over = [], [], []
    for seed in range(40):
        decisions, ratio = ten_checkpoints(Drifting(seed), threshold)
        medians.append(statistics.median(d.evaluations for d in decisions))
        exhaustive.append(sum(d.exhaustive for d in decisions))
        over += ratio
    with capsys.disabled():
        print(  # noqa: T201 - a figure that people quote
            f"\n40 drifting runs at {threshold:g}: median {statistics.median(medians)} candidates a "
            f"checkpoint (worst run {max(medians)}), at most {max(exhaustive)} exhaustive searches, "
            f"{statistics.median(over):.3f} of the optimum's bytes"
        )
    assert statistics.median(medians) <= 3
    assert np.mean([median <= 3 for median in medians]) >= 0.9
    assert max(exhaustive) <= 3
    assert statistics.median(over) <= 1.05


def test_a_steady_surface_takes_one_measurement_most_of_the_time() -> None:
    run = Drifting(0, growth=(1.0, 1.0))
    run.jitter = 0.0
    decisions, _ = ten_checkpoints(run, 0.01)
    assert [d.exhaustive for d in decisions] == [True] + [False] * 9
    assert statistics.median(d.evaluations for d in decisions[1:]) <= 2
    assert min(d.evaluations for d in decisions[1:]) == 1


def slope(start: float) -> Surface:
    space = cube()
    worse = {p: start + 0.0015 * sum(p.steps) + 0.0001 * p.variant[0] for p in places(space)}
    size = {p: int(1e6 * 0.9 ** sum(p.steps)) + p.variant[0] for p in places(space)}
    return Surface(space, worse, size)


def choose(surface: Surface, state: SearchState, **settings: int) -> Decision:
    return Manager(**settings).choose(
        surface.space, surface.draft, surface.measure, surface.reference, surface.threshold, "min", state
    )


def test_the_ratio_recovers_after_a_hard_checkpoint() -> None:
    state = choose(slope(0.0), SearchState()).state
    hard = choose(slope(0.005), state)
    assert hard.draft.size > 1.2 * (slope(0.0).optimum() or 0)
    state, sizes = hard.state, []
    for _ in range(8):
        decision = choose(slope(0.0), state)
        state = decision.state
        sizes.append(decision.draft.size)
    assert state.exhaustive == 1
    assert sizes[-1] == pytest.approx(slope(0.0).optimum(), abs=2)


def test_a_probe_is_made_every_few_checkpoints_even_if_it_looks_hopeless() -> None:
    state = choose(slope(0.0), SearchState()).state
    evaluations = []
    for _ in range(9):
        decision = choose(slope(0.0), state, probe_every=3)
        state = decision.state
        evaluations.append(decision.evaluations)
    assert [n > 1 for n in evaluations] == [False, False, True] * 3


def test_nothing_at_least_as_bold_as_a_failed_candidate_is_measured() -> None:
    state = choose(slope(0.0), SearchState()).state
    surface = slope(0.004)
    choose(surface, state)
    failed = []
    for config in surface.measured:
        place = surface.grid.locate(config)
        assert place is not None
        assert not any(place.bolder_or_same(other) for other in failed)
        if not surface.meets(place):
            failed.append(place)
    assert failed


@pytest.mark.parametrize("seed", range(10))
def test_noisy_batches_still_keep_the_promise_on_the_search_set(seed: int) -> None:
    run = Drifting(seed)
    batches = np.random.default_rng(seed).uniform(1.0, 3.0, 16)
    state = SearchState()
    for checkpoint in range(8):

        def measure(draft: object, checkpoint: int = checkpoint) -> Quality:
            config = draft.config  # type: ignore[attr-defined]
            key = zlib.crc32(json.dumps(config, sort_keys=True).encode())
            noise = np.random.default_rng([checkpoint, key]).normal(0, 0.004, 16)
            return Quality(tuple(batches * (1 + run.worse(config) + noise)))

        decision = Manager().choose(
            run.space, run.draft, measure, Quality(tuple(batches)), 0.01, "min", state
        )
        again = measure(decision.draft)
        found = (sum(again.values) - batches.sum()) / batches.sum()
        assert decision.met
        if decision.config != {"bins": "exact"}:
            assert found <= 0.01 + 1e-12
            assert 0.0002 < decision.degradation.se < 0.004
        state = decision.state
        run.step(decision.config)
