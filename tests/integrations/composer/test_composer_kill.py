"""SIGKILL at random moments of training and saving: every life goes on from the last committed save."""

import pytest

from dynaquant_core.plugins import describe, find_checkpoints
from tests.integrations.composer.kit import EXACT, everything, fit, ours, program
from tests.integrations.killing import digest_of, outcome, survive

BATCHES = 36


def survived(folder, kills, seed):
    """The digest of a run that was killed so often."""

    def live(delay):
        return outcome(program("-m", "tests.integrations.composer.life", folder, BATCHES, delay))

    def committed():
        return max((describe(found).step for found in find_checkpoints(folder)), default=0)

    return survive(live, committed, kills, seed, longest=1.2)


def test_three_kills_and_the_run_ends_bit_identical(tmp_path):
    whole = fit(ours(tmp_path / "whole", **EXACT), duration=f"{BATCHES}ba")
    assert survived(tmp_path / "killed", 3, seed=3) == digest_of(everything(whole))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_twenty_kills(tmp_path, seed):
    whole = fit(ours(tmp_path / "whole", **EXACT), duration=f"{BATCHES}ba")
    assert survived(tmp_path / "killed", 5, seed) == digest_of(everything(whole))
