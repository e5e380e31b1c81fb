import os
import signal
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def live(folder, steps, kill_at=0, seed=0):
    """Runs one life; returns its exit code and what it printed."""
    command = [sys.executable, "-m", "tests.training.life", str(folder), str(steps), str(kill_at)]
    done = subprocess.run(
        command, cwd=ROOT, env=os.environ | {"SEED": str(seed)}, capture_output=True, text=True, timeout=120
    )
    return done.returncode, dict(line.split() for line in done.stdout.splitlines()), done.stderr


def test_killed_and_resumed_is_bit_identical_to_uninterrupted(tmp_path):
    code, whole, errors = live(tmp_path / "whole", 20)
    assert code == 0, errors
    for seed, kill_at, start in ((0, 6, 0), (1, 15, 4)):  # only the first life's seed may matter
        code, said, errors = live(tmp_path / "killed", 20, kill_at, seed)
        assert (code, said) == (-signal.SIGKILL, {"start": str(start)}), errors
    code, resumed, errors = live(tmp_path / "killed", 20, seed=2)
    assert (code, resumed["start"]) == (0, "12"), errors
    assert resumed["digest"] == whole["digest"]
