"""A space that bounds noise: the search keeps both promises, with as few trials."""

from __future__ import annotations

import math
import statistics
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from dynaquant_core.config import LatticeConfig
from dynaquant_core.methods.lattice import Lattice
from dynaquant_core.search import Decision, Manager, Quality, SearchState
from dynaquant_core.search.quality import Lost
from dynaquant_core.search.speculate import Speculation

ALLOWED = 40.0
SPACE = Lattice(max_noise=ALLOWED).space(gradients=False)
FREE = Lattice(max_noise=None).space(gradients=False)
SCALES = SPACE.axes["scale"]
THRESHOLD, REFERENCE = 0.01, Quality((2.0,))


class Life:
    """Degradation and noise that both grow with the square of the scale.

    Args:
        met: the scale at which a checkpoint is 1% worse.
        healed: the scale whose noise is 40 times the squared movement.
        known: whether anything is known about movement.
        threshold: of the search.
    """

    def __init__(
        self, met: float, healed: float, *, known: bool = True, threshold: float = THRESHOLD
    ) -> None:
        self.met, self.healed, self.known, self.threshold = met, healed, known, threshold

    def draft(self, config: LatticeConfig) -> Any:
        bits = 20.0 if isinstance(config.scale, str) else 6.0 - math.log2(config.scale)
        return SimpleNamespace(config=config, size=int(1e6 * bits))

    def noise(self, scale: float) -> float:
        return ALLOWED * (scale / self.healed) ** 2

    def worse(self, scale: float) -> float:
        return THRESHOLD * (scale / self.met) ** 2

    def measure(self, config: LatticeConfig) -> Quality:
        if isinstance(config.scale, str):
            return Quality((2.0,), Lost(0.0, 0.0))
        return Quality(
            (2.0 * (1 + self.worse(config.scale)),),
            Lost(0.0, self.noise(config.scale)) if self.known else None,
        )

    def choose(self, state: SearchState, space: Any = SPACE) -> Decision:
        measure = lambda draft: self.measure(draft.config)  # noqa: E731
        return Manager().choose(space, self.draft, measure, REFERENCE, self.threshold, "min", state)


def boldest(limit: float) -> float:
    """The boldest scale of the space that is not above a limit."""
    return max(scale for scale in SCALES if scale <= limit)


@pytest.mark.parametrize(("met", "healed"), [(2.0, 0.3), (0.3, 2.0), (1.0, 1.0), (6.0, 0.05)])
def test_the_stricter_of_both_decides(met: float, healed: float) -> None:
    decision = Life(met, healed).choose(SearchState())
    assert decision.config.scale == boldest(min(met, healed))
    assert decision.met
    assert not decision.beyond
    assert decision.evaluations <= 6
    assert decision.report(REFERENCE)["movement_lost"]["noise"] <= ALLOWED


def test_without_a_bound_or_known_movement_the_threshold_alone_decides() -> None:
    assert Life(2.0, 0.3).choose(SearchState(), FREE).config.scale == boldest(2.0)
    unknown = Life(2.0, 0.3, known=False).choose(SearchState())
    assert unknown.config.scale == boldest(2.0)
    assert "movement_lost" not in unknown.report(REFERENCE)


@pytest.mark.parametrize("met", [0.2, 1.0, 4.0])
@pytest.mark.parametrize("healed", [0.1, 0.7, 3.0])
def test_by_default_noise_is_bounded_by_what_it_costs(met: float, healed: float) -> None:
    """At most 100 times the movement, 50 where it costs 1%, 10 where 5%, and 5 whatever it costs."""

    def allowed(life: Life, scale: float) -> bool:
        cost, noise = life.worse(scale), life.noise(scale)
        return cost <= life.threshold and (noise <= 5.0 or (noise <= 100.0 and noise * cost <= 0.5))

    space, before = replace(Lattice().space(gradients=False), by_learnt=False), 0.0
    for threshold in (0.001, 0.01, 0.05, 0.2):
        life = Life(met, healed, threshold=threshold)
        chosen = life.choose(SearchState(), space).config.scale
        assert chosen == max(scale for scale in SCALES if allowed(life, scale))
        assert chosen >= before, "a wider threshold never takes more bytes"
        before = chosen


def test_where_nothing_has_moved_yet_the_most_careful_scale_is_taken_and_no_more() -> None:
    """The first step after a restore: any noise is far above such a movement; a file must not be exact."""
    decision = Life(2.0, 1e-6).choose(SearchState())
    assert decision.config.scale == SCALES[0]
    assert decision.met
    assert not decision.beyond


def test_beyond_the_cube_nothing_is_said_of_noise() -> None:
    decision = Life(0.011, 1e-6).choose(SearchState())
    assert decision.beyond
    assert decision.config.scale == 0.01


def test_a_run_that_is_restored_again_and_again_takes_few_trials() -> None:
    """Movement since the last restore grows with every checkpoint, and is small again after the next."""
    counts, state, rng = [], SearchState(), np.random.default_rng(0)
    for checkpoint in range(60):
        healed = 0.1 * (1 + checkpoint % 6) * math.exp(0.1 * rng.normal())
        decision = Life(1.5, healed).choose(state)
        state = decision.state
        assert decision.config.scale <= healed
        counts.append(decision.evaluations)
    assert statistics.median(counts) <= 2
    assert statistics.mean(counts) <= 3


@pytest.mark.parametrize(("met", "healed"), [(2.0, 0.3), (0.3, 2.0), (2.0, 1e-6)])
@pytest.mark.parametrize("members", [1, 3, 8])
def test_ranks_that_share_a_search_keep_the_bound_too(met: float, healed: float, members: int) -> None:
    life = Life(met, healed)
    search = Speculation(
        Manager(), SPACE, lambda config: life.draft(config).size, THRESHOLD, "min", SearchState()
    )
    search.reference = REFERENCE
    while (shared := search.decision()) is None:
        for spot in search.ahead(members):
            search.answer(spot, life.measure(search.config(spot)))
    alone = life.choose(SearchState())
    assert (shared.config, shared.quality, shared.state) == (alone.config, alone.quality, alone.state)
