"""SIGKILL at random moments of training and saving: every life goes on from the last committed save."""

import random
import signal

import pytest

from dynaquant_accelerate import newest
from dynaquant_core.plugins import describe
from tests.integrations.accelerate.kit import EPOCH, EXACT, build, python, train
from tests.integrations.accelerate.life import digest

STEPS = 12 * EPOCH


def live(folder, delay=0.0):
    """One life: its exit code and what it said."""
    said, errors = (
        process := python("-m", "tests.integrations.accelerate.life", folder, STEPS, delay)
    ).communicate(timeout=120)
    assert process.returncode in (0, -signal.SIGKILL), errors
    return process.returncode, dict(line.split() for line in said.splitlines())


def committed(folder):
    """The step of the last checkpoint that is whole."""
    found = newest(folder / "checkpoints")
    return 0 if found is None else describe(found).step


def survive(folder, kills, seed):
    """Kills so many lives and lets the last one end; its digest."""
    moments = random.Random(seed)
    for _ in range(kills):
        before = committed(folder)
        code, said = live(folder, moments.uniform(0.05, 0.9))
        assert int(said["start"]) == before
        if code == 0:
            return said["digest"]
    before = committed(folder)
    code, said = live(folder)
    assert (code, int(said["start"])) == (0, before)
    return said["digest"]


def test_three_kills_and_the_run_ends_bit_identical(tmp_path):
    whole = train(build(tmp_path / "whole", options=EXACT), STEPS)
    assert survive(tmp_path / "killed", 3, seed=3) == digest(whole)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_twenty_kills(tmp_path, seed):
    whole = train(build(tmp_path / "whole", options=EXACT), STEPS)
    assert survive(tmp_path / "killed", 5, seed) == digest(whole)
