"""The diary of a run, where the system takes less than all of it."""

from __future__ import annotations

import resource
from pathlib import Path

import pytest

from dynaquant_core.errors import StorageError
from dynaquant_core.experiments import events


def test_a_line_that_fits_in_part_is_an_error_and_spoils_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    events.append(path, "start", restored=0)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + 40, before[1]))
    try:
        with pytest.raises(StorageError, match=r"events\.jsonl: cannot be written"):
            events.append(path, "checkpoint", step=10, told="x" * 100)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    events.append(path, "final", step=20)
    assert [event["event"] for event in events.read(path)] == ["start", "final"]


def test_a_line_of_other_bytes_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    events.append(path, "start", restored=0)
    with path.open("ab") as file:
        file.write(b"\xff\xfe\n" + b"[" * 100_000)
    events.append(path, "final", step=20)
    assert [event["event"] for event in events.read(path)] == ["start", "final"]
    assert events.read_whole(path) == []


def test_a_line_that_does_not_say_where_it_was_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    events.append(path, "start", restored=0)
    for event, told in (("start", {}), ("loss", {"step": "3"}), ("checkpoint", {"stored_bytes": 3})):
        events.append(path, event, **told)
    events.append(path, "bins", method="qd")  # of no step
    with path.open("a") as file:
        file.write('{"event": 3}\n{"event": ["loss"]}\n')
    events.append(path, "final", step=20)
    assert [event["event"] for event in events.read(path)] == ["start", "bins", "final"]
    assert events.read_whole(path) == []
