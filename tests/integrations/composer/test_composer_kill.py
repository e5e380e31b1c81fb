"""SIGKILL at random moments of training and saving: every life goes on from the last committed save."""

from functools import partial

import pytest

from dynaquant_core.plugins import describe, find_checkpoints
from tests.gloo import environments
from tests.integrations.composer.kit import EXACT, everything, fit, ours, program
from tests.integrations.killing import digest_of, ends_of_ranks, outcome, survive

BATCHES = 36


LIFE = ("-m", "tests.integrations.composer.life")


def committed_in(folder):
    return max((describe(found).step for found in find_checkpoints(folder)), default=0)


def survived(folder, kills, seed):
    """The digest of a run that was killed so often."""

    def live(delay):
        return outcome(program(*LIFE, folder, BATCHES, delay))

    return survive(live, partial(committed_in, folder), kills, seed, longest=1.2)


def ranks(folder):
    """The lives of two ranks, which nothing ends before their time."""
    return [program(*LIFE, folder, BATCHES, 0, env=environment) for environment in environments(2)]


def test_three_kills_and_the_run_ends_bit_identical(tmp_path):
    whole = fit(ours(tmp_path / "whole", **EXACT), duration=f"{BATCHES}ba")
    assert survived(tmp_path / "killed", 3, seed=3) == digest_of(everything(whole))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_twenty_kills(tmp_path, seed):
    whole = fit(ours(tmp_path / "whole", **EXACT), duration=f"{BATCHES}ba")
    assert survived(tmp_path / "killed", 5, seed) == digest_of(everything(whole))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_ranks_that_are_killed_one_before_the_other(tmp_path, seed):
    whole, killed = ends_of_ranks(ranks, committed_in, tmp_path, seed)
    assert killed == whole
