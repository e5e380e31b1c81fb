"""SIGKILL at random moments of training and saving: every life goes on from the last committed save."""

from functools import partial

import pytest

from dynaquant_accelerate import newest
from dynaquant_core.plugins import describe
from tests.gloo import environments
from tests.integrations.accelerate.kit import EPOCH, EXACT, ON_CPU, build, everything, python, train
from tests.integrations.killing import digest_of, ends_of_ranks, outcome, survive

STEPS = 12 * EPOCH


LIFE = ("-m", "tests.integrations.accelerate.life")


def committed_in(folder):
    found = newest(folder / "checkpoints")
    return 0 if found is None else describe(found).step


def survived(folder, kills, seed):
    """The digest of a run that was killed so often."""

    def live(delay):
        return outcome(python(*LIFE, folder, STEPS, delay))

    return survive(live, partial(committed_in, folder), kills, seed, longest=0.9)


def ranks(folder):
    """The lives of two ranks, which nothing ends before their time."""
    return [python(*LIFE, folder, STEPS, 0, env=environment | ON_CPU) for environment in environments(2)]


def test_three_kills_and_the_run_ends_bit_identical(tmp_path):
    whole = train(build(tmp_path / "whole", options=EXACT), STEPS)
    assert survived(tmp_path / "killed", 3, seed=3) == digest_of(everything(whole))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_twenty_kills(tmp_path, seed):
    whole = train(build(tmp_path / "whole", options=EXACT), STEPS)
    assert survived(tmp_path / "killed", 5, seed) == digest_of(everything(whole))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_ranks_that_are_killed_one_before_the_other(tmp_path, seed):
    whole, killed = ends_of_ranks(ranks, committed_in, tmp_path, seed)
    assert killed == whole
