"""A launcher starts all ranks again where one of them has died, and its store keeps what they had put up."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from torch import distributed

from dynaquant_core.plugins import describe
from dynaquant_core.plugins.agreement import DEADLINE
from tests.programs import Program

#: Ranks wait so long for one that does not come.
PATIENCE = 15.0


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where three lives of a job have left what they found."""
    place = tmp_path_factory.mktemp("restarted")
    launcher = distributed.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    settings = {"OMP_NUM_THREADS": "1", "DYNAQUANT_THREADS": "1", DEADLINE: str(PATIENCE)}
    for life in range(3):
        words = ["-m", "tests.plugins.restarted_ranks", launcher.port, life]
        ranks = [Program([*words, rank, place], env={**os.environ, **settings}) for rank in range(2)]
        errors = [ranks[1].communicate(timeout=60)[1]]
        if life == 1:
            ranks[0].kill()  # as the launcher does then
        errors.append(ranks[0].communicate(timeout=60)[1])
        assert [rank.returncode for rank in ranks] == ([0, 0] if life == 2 else [-9, -9]), errors
    return place


def said(folder: Path, life: int) -> list[dict[str, Any]]:
    return [json.loads((folder / f"rank{rank}-{life}.json").read_text("utf-8")) for rank in range(2)]


def test_no_rank_waits_for_a_save_in_the_midst_of_which_the_writer_was_killed(folder: Path) -> None:
    """It waited for the whole of the deadline, ten minutes as a rule, before it could load."""
    assert max(rank["seconds"] for rank in said(folder, 1)) < PATIENCE / 2


def test_ranks_meet_though_one_of_them_had_died_before_its_first_save(folder: Path) -> None:
    """They counted lives each by itself: neither found the other then, in any later life."""
    assert ["heard" in rank for rank in said(folder, 2)] == [False, False]
    assert describe(folder / "checkpoint").step == 2
