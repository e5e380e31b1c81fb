import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from dynaquant_core.plugins import describe, find_checkpoints, read_tree
from tests.integrations.lightning.lives import live

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def lives():
    environment = os.environ | {"PYTHONPATH": f"{ROOT / 'integrations'}"}
    command = [sys.executable, "-m", "tests.integrations.lightning.lives"]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, cwd=ROOT, env=environment, text=True, **pipes) as process:
        yield process


class Life:
    """One training process; dies when told to."""

    def __init__(self, lives, folder, said, mode, steps):
        said.unlink(missing_ok=True)
        self.lives, self.said = lives, said
        lives.stdin.write(f"{folder} {steps} {said} {mode}\n")
        lives.stdin.flush()
        self.process = int(lives.stdout.readline().split()[1])

    def kill_after(self, seconds):
        while not self.said.exists():
            time.sleep(0.005)
        time.sleep(seconds)
        os.kill(self.process, signal.SIGKILL)
        return self.end()

    def end(self):
        code = int(self.lives.stdout.readline().split()[1])
        return code, dict(line.split() for line in self.said.read_text().splitlines())


def newest(folder):
    """Steps of the last checkpoint that is whole on disk; 0 where there is none."""
    return max(
        (describe(place).step for place in find_checkpoints(folder) if place.name == "last.ckpt"), default=0
    )


@pytest.mark.parametrize(
    ("mode", "kills", "steps"),
    [("exact", 3, 100), ("lossy", 1, 60), pytest.param("exact", 20, 600, marks=pytest.mark.slow)],
)
def test_killed_at_random_moments_and_resumed_to_the_end(tmp_path, lives, mode, kills, steps):
    folder, said = tmp_path / "run", tmp_path / "said"
    draw = random.Random(os.urandom(8))
    moments = [draw.uniform(0.0, 0.5) for _ in range(kills)]
    for moment in moments:
        known = newest(folder)
        code, told = Life(lives, folder, said, mode, steps).kill_after(moment)
        assert code == -signal.SIGKILL, moments
        assert int(told["start"]) == known, moments
        for place in find_checkpoints(folder):  # whatever is there, is whole
            assert read_tree(place)["global_step"] == describe(place).step
    known = newest(folder)
    code, told = Life(lives, folder, said, mode, steps).end()
    assert (code, int(told["start"])) == (0, known), moments
    assert describe(folder / "last.ckpt").step == steps
    assert {describe(place).step for place in find_checkpoints(folder)} >= {steps - 5, steps}
    if mode == "exact":
        assert told["digest"] == live(tmp_path / "whole", steps, tmp_path / "said", mode, pause=0), moments
