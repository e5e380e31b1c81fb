"""A training process that is killed at random moments, by a signal, and resumed from its newest folder."""

from __future__ import annotations

import os
import random
import shutil
import time
from pathlib import Path

from dynaquant_core.plugins import describe, find_checkpoints
from tests.plugins.kit import checkpoint
from tests.plugins.life import EVERY, KEPT
from tests.programs import Program

STEPS = 60
KILLS = 3
ONE_THREAD = {"DYNAQUANT_THREADS": "1", "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}


def life(folder: Path) -> Program:
    return Program(["-m", "tests.plugins.life", folder, STEPS], env=os.environ | ONE_THREAD)


def ended(process: Program) -> str:
    """Where it began and its digest."""
    out, err = process.communicate(timeout=300)
    assert process.returncode == 0, err
    return out


def newest(folder: Path) -> int:
    """Looks at every checkpoint that is there; returns the highest step."""
    steps = [0]
    for path in find_checkpoints(folder):
        steps.append(describe(path).step)
        assert checkpoint(path)["callbacks"]["gauge"].value == steps[-1]
    return max(steps)


def test_kills_at_random_moments_lose_nothing(tmp_path: Path) -> None:
    chance, folder, begun = random.Random(0), tmp_path / "killed", 0
    for _ in range(KILLS):
        with life(folder) as process:
            start = process.stdout.readline()
            time.sleep(chance.uniform(0.05, 0.6))
            process.kill()
        assert start == f"start {begun}\n"
        left = newest(folder)
        assert left >= begun
        begun = left
    with life(folder) as process:
        resumed = ended(process)
    with life(tmp_path / "whole") as process:
        whole = ended(process)
    assert resumed.splitlines()[0] == f"start {begun}"
    assert resumed.splitlines()[1] == whole.splitlines()[1]
    assert newest(folder) == STEPS
    names = {f"step-{STEPS - EVERY * back}.ckpt" for back in range(KEPT)} | {"last.ckpt"}
    left_over = {path.name for path in folder.iterdir()} - names
    assert len(left_over) <= KILLS  # a removal that was under way
    for name in left_over:
        shutil.rmtree(folder / name)
    assert newest(folder) == STEPS
