import numpy as np
import pytest

from dynaquant_core.errors import ConfigError
from dynaquant_core.training.schedule import StepSchedule, TimeSchedule, parse_every


def due_steps(schedule, steps):
    found = []
    for step in steps:
        schedule.advance(step)
        if schedule.due():
            found.append(step)
            schedule.saved(step)
    return found


def test_steps_are_due_at_multiples_also_after_a_restore_in_between():
    assert due_steps(StepSchedule(10), range(1, 35)) == [10, 20, 30]
    resumed = StepSchedule(10)
    resumed.saved(20)
    assert not resumed.due()
    assert due_steps(resumed, range(21, 41)) == [30, 40]


def test_a_save_in_between_does_not_move_the_rhythm():
    schedule = StepSchedule(10)
    schedule.advance(13)
    schedule.saved(13)
    assert due_steps(schedule, range(14, 25)) == [20]


def test_a_missed_due_step_is_due_at_the_next():
    schedule = StepSchedule(10)
    schedule.advance(10)
    schedule.advance(11)
    assert schedule.due()


def test_steps_left_counts_down_to_zero():
    schedule = StepSchedule(5)
    left = []
    for step in range(1, 6):
        schedule.advance(step)
        left.append(schedule.steps_left())
    assert left == [4, 3, 2, 1, 0]


class Clock:
    now = 100.0

    def __call__(self):
        return self.now


def test_time_is_due_when_it_has_passed_and_starts_again_at_a_save():
    clock = Clock()
    schedule = TimeSchedule(60, clock)
    clock.now += 59
    schedule.advance(1)
    assert not schedule.due()
    clock.now += 1
    assert schedule.due()
    schedule.saved(1)
    assert not schedule.due()


def test_steps_left_of_a_time_are_estimated_on_the_low_side():
    clock = Clock()
    schedule = TimeSchedule(100, clock)
    assert schedule.steps_left() == float("inf")
    for step in range(1, 51):
        clock.now += 1
        schedule.advance(step)
    assert 30 <= schedule.steps_left() <= 50
    clock.now += 1000
    assert schedule.steps_left() == 0


@pytest.mark.parametrize(
    ("text", "seconds"), [("30min", 1800), ("90s", 90), ("1.5 h", 5400), ("2 days", 172800)]
)
def test_times_are_read(text, seconds):
    assert parse_every(text).seconds == seconds


@pytest.mark.parametrize("every", [0, -5, True, 1.5, "30", "0min", "min", "5 parsecs", "-3h", None, ""])
def test_bad_values_are_refused(every):
    with pytest.raises(ConfigError, match="every must be"):
        parse_every(every)


def test_a_number_of_numpys_is_a_number_of_steps():
    assert parse_every(np.int64(10)).steps_left() == 10
