"""Where the training process is killed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dynaquant_core.errors import ConfigError
from dynaquant_core.experiments.failures import failure_steps


@given(st.integers(1, 40), st.integers(1, 60), st.data())
def test_kills_fall_into_different_intervals_after_the_first_checkpoint(
    interval: int, count: int, data: st.DataObject
) -> None:
    steps = interval * count
    failures = data.draw(st.integers(0, count - 1))
    kills = failure_steps(failures, steps, interval)
    assert len(kills) == failures
    assert kills == sorted(kills)
    assert all(interval <= kill < steps for kill in kills)
    assert len({kill // interval for kill in kills}) == failures
    assert all(kill % interval == interval // 2 for kill in kills)


@pytest.mark.parametrize(
    ("failures", "expected"),
    [(0, []), (1, [450]), (2, [350, 650]), (3, [250, 450, 750]), (9, [150 + 100 * i for i in range(9)])],
)
def test_kills_spread_over_the_run(failures: int, expected: list[int]) -> None:
    assert failure_steps(failures, 1000, 100) == expected


def test_a_taken_interval_gives_way_to_the_next_free_one() -> None:
    # 8 kills in 10 intervals: targets 1.1, 2.2, ..., 8.9 intervals; the first two are both nearest to 1.5.
    assert failure_steps(8, 1000, 100) == [150, 250, 350, 450, 550, 650, 750, 850]


def test_kills_of_an_endless_run_are_found_at_once() -> None:
    assert failure_steps(1, 2**52, 2) == [2**51 - 1]


@pytest.mark.parametrize("failures", [10, 11])
def test_as_many_kills_as_checkpoints_are_refused(failures: int) -> None:
    with pytest.raises(ConfigError, match="have 9 such places"):
        failure_steps(failures, 1000, 100)


def test_named_steps_are_taken_as_they_are() -> None:
    assert failure_steps({"at": [310, 120]}, 1000, 100) == [120, 310]
    for outside in (99, 1000):
        with pytest.raises(ConfigError, match=f"step {outside} is outside"):
            failure_steps({"at": [outside]}, 1000, 100)
