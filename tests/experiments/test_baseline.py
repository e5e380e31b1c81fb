"""Baselines of several commands at a time: one stays, whoever comes first."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from dynaquant_core.errors import StorageError
from dynaquant_core.experiments import baseline, events
from dynaquant_core.experiments.baseline import FOLDER, find_baseline, publish

DIARY: list[dict[str, Any]] = [
    {"event": "loss", "step": 10, "loss": 2.0, "seconds": 1.0},
    {"event": "final", "step": 10, "value": 1.5, "weights_digest": "aa", "parameters": 3},
]


def write(folder: Path, diary: list[dict[str, Any]]) -> None:
    folder.mkdir(parents=True)
    for event in diary:
        events.append(folder / "events.jsonl", **event)


def between(monkeypatch: pytest.MonkeyPatch, diary: list[dict[str, Any]]) -> None:
    """Another command writes this where ours has just made room for its own."""
    real = shutil.rmtree

    def remove(folder: Path, **options: Any) -> None:
        real(folder, **options)
        if folder == FOLDER / "key":
            write(folder, diary)

    monkeypatch.setattr(baseline.shutil, "rmtree", remove)


def test_the_equal_baseline_of_a_faster_command_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    between(monkeypatch, [*DIARY, {"event": "loss", "step": 1, "loss": 9.0, "seconds": 1.0}])
    assert publish(DIARY, "key", 10).final == 1.5
    found = find_baseline("key", 10)
    assert found is not None
    assert found.curve[-1] == (1, 9.0), "theirs"
    assert [folder.name for folder in FOLDER.iterdir()] == ["key"], "ours is gone"


def test_a_baseline_that_nobody_could_publish_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    between(monkeypatch, DIARY[:1])  # in the way, and not finished
    with pytest.raises(StorageError, match="the baseline cannot be kept: Directory not empty"):
        publish(DIARY, "key", 10)


def test_a_baseline_that_has_no_place_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    FOLDER.mkdir(parents=True)
    (FOLDER / f"key.{os.getpid()}").touch()
    with pytest.raises(StorageError, match=r"key\.\d+: cannot be made: File exists"):
        publish(DIARY, "key", 10)
