"""Baselines of several commands at a time: one stays, whoever comes first."""

from __future__ import annotations

import resource
import shutil
import signal
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest

from dynaquant_core.errors import StorageError
from dynaquant_core.experiments import baseline, events
from dynaquant_core.experiments.baseline import FOLDER, find_baseline, publish
from dynaquant_core.experiments.locks import own_folder, sweep
from tests.programs import CONTEXT

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
    FOLDER.parent.mkdir()
    FOLDER.symlink_to("gone")
    with pytest.raises(StorageError, match=r"key\.\w+: cannot be made: File exists"):
        publish(DIARY, "key", 10)


def test_what_a_full_disk_left_of_a_baseline_is_no_part_of_the_next_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, before[1]))
    try:
        with pytest.raises(StorageError, match=r"events\.jsonl: cannot be written"):
            publish(DIARY, "key", 10)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    publish(DIARY, "key", 10)
    found = find_baseline("key", 10)
    assert found is not None
    assert found.curve == [(10, 2.0)]
    assert [folder.name for folder in FOLDER.iterdir()] == ["key"]


def hold(place: Path, said: Connection) -> None:
    """In another process: makes something."""
    with own_folder(place) as folder:
        (folder / "events.jsonl").touch()
        said.send(folder)
        signal.pause()


def test_only_what_nobody_makes_any_more_is_swept(tmp_path: Path) -> None:
    """Its number does not tell: another node, or a container, has numbers of its own."""
    left = tmp_path / "key.4194304"  # as earlier versions named it
    write(left, DIARY[:1])
    (tmp_path / "key").mkdir()
    heard, said = CONTEXT.Pipe(duplex=False)
    maker = CONTEXT.Process(target=hold, args=(tmp_path / "key", said))
    maker.start()
    theirs = heard.recv()
    sweep(tmp_path / "key")
    assert sorted(tmp_path.iterdir()) == [tmp_path / "key", theirs]
    maker.kill()
    maker.join()
    with own_folder(tmp_path / "key") as ours:
        sweep(tmp_path / "key")
        assert sorted(tmp_path.iterdir()) == [tmp_path / "key", ours]


@pytest.mark.parametrize("damage", [b"\xff\xfe", b'{"event"; "lo'])
def test_a_damaged_baseline_is_made_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damage: bytes
) -> None:
    monkeypatch.chdir(tmp_path)
    publish(DIARY, "key", 10)
    diary = FOLDER / "key" / "events.jsonl"
    whole = diary.read_bytes()
    diary.write_bytes(damage + whole[len(damage) :])
    assert find_baseline("key", 10) is None
    publish(DIARY, "key", 10)
    assert diary.read_bytes() == whole
