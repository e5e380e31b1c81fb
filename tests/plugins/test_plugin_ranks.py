"""Several processes that train together: one choice, one writer."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from dynaquant_core.plugins import describe, find_checkpoints, read_tree
from tests.plugins.ranks_life import FAILS_AT, NEWCOMER_AT
from tests.programs import Program

SETTINGS = {
    "DYNAQUANT_THREADS": "1",
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "DYNAQUANT_DEADLINE": "120",
}


def together(folder: Path, ranks: int) -> list[dict]:
    """Runs every rank; what each of them printed."""
    processes = [
        Program(["-m", "tests.plugins.ranks_life", folder, rank, ranks], env=os.environ | SETTINGS)
        for rank in range(ranks)
    ]
    try:
        told = [process.communicate(timeout=300) for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert [process.returncode for process in processes] == [0] * ranks, told
    return [json.loads(out.splitlines()[-1]) for out, _ in told]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the ranks' job."""
    return tmp_path_factory.mktemp("ranks")


@pytest.fixture(scope="module")
def three(place: Path) -> list[dict]:
    """What each of three ranks saw."""
    return together(place, 3)


def test_ranks_choose_what_one_would_choose_alone(place: Path, three: list[dict]) -> None:
    first, second, third = three
    (alone,) = together(place, 1)
    before = [entry for entry in first["saved"] if entry[0] < NEWCOMER_AT]
    assert before == alone["saved"][: len(before)]
    assert [kind for _, kind, *_ in before] == ["key"] + ["delta"] * (len(before) - 1)
    after = {step: kind for step, kind, *_ in first["saved"] if step >= NEWCOMER_AT}
    assert after == {NEWCOMER_AT: "key", NEWCOMER_AT + 5: "delta", FAILS_AT + 5: "delta"}
    assert all(met for *_, met in first["saved"])
    assert second["saved"] == third["saved"] == []
    ((step, kind, _),) = third["errors"]
    assert (step, kind) == (FAILS_AT, "UnsupportedStateError")
    for rank in (first, second):
        ((step, kind, message),) = rank["errors"]
        assert (step, kind) == (FAILS_AT, "SaveError")
        assert message.startswith("rank 2 of 3: ")
    for folder in find_checkpoints(place / "3-ranks"):
        assert read_tree(folder)["rank"] == 0
        assert describe(folder).step == int(folder.name)


def test_ranks_leave_a_failed_search_once_an_exact_checkpoint_is_there(three: list[dict]) -> None:
    first, second, third = (rank["search"] for rank in three)
    assert first == second == third
    message, kind, was_there = first
    assert (kind, was_there) == ("EvaluationError", True)
    assert message.startswith("rank 1 of 3: evaluate raised ValueError: rank one cannot")


def test_all_ranks_hear_at_once_that_the_writer_failed(three: list[dict]) -> None:
    first, second, third = (rank["meeting"] for rank in three)
    assert first[1] == "SaveError"
    assert second == third == [f"rank 0 of 3: SaveError: {first[0]}", "SaveError"]
