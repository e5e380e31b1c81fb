import os
import signal

import pytest

from tests.programs import run


def live(folder, steps, kill_at=0, seed=0, method="dynaquant"):
    """Runs one life; returns its exit code and what it printed."""
    words = ["-m", "tests.training.life", folder, steps, kill_at]
    done = run(words, env=os.environ | {"SEED": str(seed), "METHOD": method})
    return done.returncode, dict(line.split() for line in done.stdout.splitlines()), done.stderr


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """What an uninterrupted life says."""
    code, said, errors = live(tmp_path_factory.mktemp("whole"), 20)
    assert code == 0, errors
    return said


@pytest.mark.parametrize("method", ["dynaquant", "lattice"])
def test_killed_and_resumed_is_bit_identical_to_uninterrupted(tmp_path, whole, method):
    for seed, kill_at, start in ((0, 6, 0), (1, 15, 4)):  # only the first life's seed may matter
        code, said, errors = live(tmp_path, 20, kill_at, seed, method)
        assert (code, said) == (-signal.SIGKILL, {"start": str(start)}), errors
    code, resumed, errors = live(tmp_path, 20, seed=2, method=method)
    assert (code, resumed["start"]) == (0, "12"), errors
    assert resumed["digest"] == whole["digest"]
