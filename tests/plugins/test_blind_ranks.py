"""Ranks whose evaluate does not depend on what is stored come to the same as one alone."""

from __future__ import annotations

from pathlib import Path

from dynaquant_core.config import LatticeConfig
from tests.gloo import play


def test_ranks_agree_that_evaluate_sees_nothing(tmp_path: Path) -> None:
    found = play("tests.plugins.blind_ranks", tmp_path, 2, "blind", store="tcp")["blind"]
    for number in range(2):
        alone = found[0]["saves"][number]["alone"]
        for rank in found:
            together = rank["saves"][number]["together"]
            assert together["error"] is None
            assert together["untouched"]
            for name in ("config", "report", "state", "decoded"):
                assert together[name] == alone[name], name
        assert alone["config"] == LatticeConfig().as_dict()
        assert "met" not in alone["report"]
