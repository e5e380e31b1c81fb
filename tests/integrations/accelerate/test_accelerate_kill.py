"""SIGKILL at random moments of training and saving: every life goes on from the last committed save."""

import pytest

from dynaquant_accelerate import newest
from dynaquant_core.plugins import describe
from tests.integrations.accelerate.kit import EPOCH, EXACT, build, everything, python, train
from tests.integrations.killing import digest_of, outcome, survive

STEPS = 12 * EPOCH


def survived(folder, kills, seed):
    """The digest of a run that was killed so often."""

    def live(delay):
        return outcome(python("-m", "tests.integrations.accelerate.life", folder, STEPS, delay))

    def committed():
        found = newest(folder / "checkpoints")
        return 0 if found is None else describe(found).step

    return survive(live, committed, kills, seed, longest=0.9)


def test_three_kills_and_the_run_ends_bit_identical(tmp_path):
    whole = train(build(tmp_path / "whole", options=EXACT), STEPS)
    assert survived(tmp_path / "killed", 3, seed=3) == digest_of(everything(whole))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_twenty_kills(tmp_path, seed):
    whole = train(build(tmp_path / "whole", options=EXACT), STEPS)
    assert survived(tmp_path / "killed", 5, seed) == digest_of(everything(whole))
