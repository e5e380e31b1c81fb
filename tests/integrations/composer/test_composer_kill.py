"""SIGKILL at random moments of training and saving: every life goes on from the last committed save."""

import random
import signal

import pytest

from dynaquant_core.plugins import describe, find_checkpoints
from tests.integrations.composer.kit import EXACT, fit, ours, python
from tests.integrations.composer.life import digest

BATCHES = 36


def live(folder, delay=0.0):
    """One life: its exit code and what it said."""
    process = python("-m", "tests.integrations.composer.life", folder, BATCHES, delay)
    said, errors = process.communicate(timeout=200)
    assert process.returncode in (0, -signal.SIGKILL), errors
    return process.returncode, dict(line.split() for line in said.splitlines())


def committed(folder):
    """The step of the last checkpoint that is whole."""
    return max((describe(found).step for found in find_checkpoints(folder)), default=0)


def survive(folder, kills, seed):
    """Kills so many lives and lets the last one end; its digest."""
    moments = random.Random(seed)
    for _ in range(kills):
        before = committed(folder)
        code, said = live(folder, moments.uniform(0.1, 1.2))
        assert int(said["start"]) == before
        if code == 0:
            return said["digest"]
    before = committed(folder)
    code, said = live(folder)
    assert (code, int(said["start"])) == (0, before)
    return said["digest"]


def test_three_kills_and_the_run_ends_bit_identical(tmp_path):
    whole = fit(ours(tmp_path / "whole", **EXACT), duration=f"{BATCHES}ba")
    assert survive(tmp_path / "killed", 3, seed=3) == digest(whole)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_twenty_kills(tmp_path, seed):
    whole = fit(ours(tmp_path / "whole", **EXACT), duration=f"{BATCHES}ba")
    assert survive(tmp_path / "killed", 5, seed) == digest(whole)
