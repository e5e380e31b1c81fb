"""A process killed at any operation leaves whole checkpoints only."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.plugins.crash_sweep import SCENARIOS

ROOT = Path(__file__).parents[2]
ONE_THREAD = {"DYNAQUANT_THREADS": "1", "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_a_kill_at_every_operation(tmp_path: Path, scenario: str) -> None:
    command = [sys.executable, "-m", "tests.plugins.crash_sweep", scenario, str(tmp_path)]
    done = subprocess.run(
        command,
        cwd=ROOT,
        env=os.environ | ONE_THREAD,
        capture_output=True,
        text=True,
        check=False,
        timeout=500,
    )
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["broken"] == []
    operations = report["operations"]
    assert report["kills"] == 2 * len(operations) + operations.count("write")
    if scenario != "remove":
        assert {"open", "write", "fsync", "replace"} <= set(operations)
    if scenario not in ("remove", "again"):
        assert "link" in operations
