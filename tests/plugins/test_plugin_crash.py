"""A process killed at any operation leaves whole checkpoints only."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.kill_shim import report_of
from tests.plugins.crash_sweep import SCENARIOS


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_a_kill_at_every_operation(tmp_path: Path, scenario: str) -> None:
    operations = report_of("tests.plugins.crash_sweep", scenario, tmp_path)["operations"]
    if scenario != "remove":
        assert {"open", "write", "fsync", "replace"} <= set(operations)
    if scenario not in ("remove", "again"):
        assert "link" in operations
