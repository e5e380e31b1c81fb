from __future__ import annotations

import json
import math
from functools import partial

import pytest

from dynaquant_core.config import Config
from dynaquant_core.errors import ConfigError
from dynaquant_core.methods.base import Space
from dynaquant_core.search import Manager, Quality, SearchState
from tests.search.surfaces import Drifting, cube


def go_on(run: Drifting, state: SearchState, *, through_json: bool) -> tuple[list[object], SearchState]:
    """Six checkpoints of a run; the configs chosen with the evaluations they took."""
    chosen: list[object] = []
    for _ in range(6):
        if through_json:
            state = SearchState.from_dict(json.loads(json.dumps(state.as_dict(), allow_nan=False)))
        decision = Manager().choose(run.space, run.draft, run.measure, Quality((2.0,)), 0.01, "min", state)
        chosen.append((decision.config, decision.evaluations))
        state = decision.state
        run.step(decision.config)
    return chosen, state


@pytest.mark.parametrize("seed", range(8))
def test_a_resumed_search_goes_on_as_if_nothing_had_happened(seed: int) -> None:
    kept = go_on(Drifting(seed), SearchState(), through_json=False)
    resumed = go_on(Drifting(seed), SearchState(), through_json=True)
    assert resumed == kept


def test_a_resumed_search_is_in_steady_state() -> None:
    run = Drifting(2, growth=(1.0, 1.0))
    _, state = go_on(run, SearchState(), through_json=False)
    decision = Manager().choose(
        run.space,
        run.draft,
        run.measure,
        Quality((2.0,)),
        0.01,
        "min",
        SearchState.from_dict(state.as_dict()),
    )
    assert not decision.exhaustive
    assert decision.evaluations <= 3


def test_a_config_of_the_method_is_found_again() -> None:
    point = partial(Config, embedding_bins=32)
    space = Space(
        point, {"bins": (16, 8), "prune": (0.0, 0.1)}, {"prune_metric": ("magnitude", "sensitivity")},
        {"embedding_bins": (32, 16)}, (Config(bins="exact"),), point(),
    )  # fmt: skip

    class Draft:
        is_key = True

        def __init__(self, config: Config) -> None:
            self.config = config
            self.size = 100 * int(config.bins) - int(100 * config.prune)

    def measure(draft: Draft) -> Quality:
        return Quality((1.0 + 0.01 * draft.config.prune + 0.1 * (draft.config.bins != 16),))

    state = SearchState()
    for expected in (True, False):
        state = SearchState.from_dict(json.loads(json.dumps(state.as_dict())))
        decision = Manager().choose(space, Draft, measure, Quality((1.0,)), 0.05, "min", state)  # type: ignore[arg-type]
        state = decision.state
        assert decision.exhaustive is expected
        assert decision.config == point(bins=16, prune=0.1)


def test_without_gradients_the_search_goes_on_with_the_metric_that_is_left() -> None:
    run = Drifting(1, growth=(1.0, 1.0))
    _, state = go_on(run, SearchState(), through_json=False)
    assert state.best is not None
    run.space = cube(metrics=False, embedding=True)
    chosen, after = go_on(run, state, through_json=True)
    assert after.exhaustive == state.exhaustive
    assert all(config["metric"] == "magnitude" for config, _ in chosen)  # type: ignore[index]


def test_a_state_of_another_space_starts_a_new_search() -> None:
    run = Drifting(4)
    state = SearchState(best={"rank": 4}, checkpoints=9, rises=(1.0,), gaps=(0.0,))
    decision = Manager().choose(run.space, run.draft, run.measure, Quality((2.0,)), 0.01, "min", state)
    assert decision.exhaustive
    assert decision.met


@pytest.mark.parametrize(
    "data",
    [
        None, [], "state", {"unknown": 1}, {"checkpoints": -1}, {"checkpoints": 1.5}, {"eager": 1},
        {"best": [1]}, {"beyond": True}, {"rises": 3}, {"gaps": ["x"]}, {"rises": [math.nan]},
    ],
)  # fmt: skip
def test_a_broken_state_is_one_clear_error(data: object) -> None:
    with pytest.raises(ConfigError, match="search state"):
        SearchState.from_dict(data)
