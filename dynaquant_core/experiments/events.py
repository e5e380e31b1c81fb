"""The diary of a run: one JSON object a line, written so that it outlives a SIGKILL of the writer.

| event | written when | fields |
|---|---|---|
| start | a process begins or resumes | restored, machine (not in earlier versions) |
| loss | now and then; at each step of the last interval | step, loss, seconds (in training, this process) |
| reference | a checkpoint is due | step, search, heldout, part: quality of the true weights |
| checkpoint | a checkpoint was committed and read back | the entry of results.json |
| probe | after a restore, one interval long | step, value: quality on the part |
| killed | the parent killed the process | step |
| swapped | the process threw its state away, to restore (``restores: swap``) | step |
| saved | a checkpoint of a rework run was made | step, bytes and seconds |
| repeat | a failure of a rework run is healed | repeat, digest, failed, restored, iterations, back, seconds |
| buckets | a change was taken apart | after, iterations, buckets |
| final | the last step is done | step, value, weights_digest, parameters; of a system, seconds and facts |
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dynaquant_core.errors import StorageError

__all__ = ["Event", "append", "checkpoints", "find", "read", "read_whole"]

Event = Mapping[str, Any]

#: Where in a training an event was, by its field.
WHERE = {
    **dict.fromkeys(
        ("loss", "reference", "checkpoint", "probe", "killed", "swapped", "saved", "final"), "step"
    ),
    "start": "restored",
}


def append(path: Path, event: str, **fields: Any) -> None:
    """Adds one line with one write: bytes handed to the system stay when the process dies.

    A line that an earlier death tore, or a disk that was full, is ended first, so that it spoils nothing but
    itself.

    Raises:
        StorageError: the system refuses.
    """
    line = json.dumps({"event": event, **fields}, allow_nan=False).encode() + b"\n"
    try:
        handle = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            size = os.fstat(handle).st_size
            torn = size > 0 and os.pread(handle, 1, size - 1) != b"\n"
            left = b"\n" + line if torn else line
            while left:  # a disk takes what it has room for, and refuses the next write only
                left = left[os.write(handle, left) :]
        finally:
            os.close(handle)
    except OSError as error:
        raise StorageError(f"{path}: cannot be written: {error.strerror}.") from None


def read(path: Path) -> list[Event]:
    """All events, oldest first; none where there is no file.  A torn line, or a damaged one, is left out."""
    return [event for event in map(_parsed, _lines(path)) if event is not None]


def read_whole(path: Path) -> list[Event]:
    """All events of a diary that was written without a break; none where a line is damaged."""
    found = [_parsed(line) for line in _lines(path)]
    return [] if None in found else [event for event in found if event is not None]


def find(events: Sequence[Event], kind: str) -> list[Event]:
    """The events of one kind, oldest first."""
    return [event for event in events if event["event"] == kind]


def checkpoints(events: Sequence[Event]) -> list[Event]:
    """The checkpoints that a run stands on, ascending: where one was taken twice, as it was the second time.

    A run whose newest checkpoints are damaged goes on from one before them, and takes those steps again.

    Example:
        >>> saved = [{"event": "checkpoint", "step": step} for step in (10, 20)]
        >>> [event["step"] for event in checkpoints([*saved, {"event": "start", "restored": 10}])]
        [10]
    """
    kept: list[Event] = []
    for event in events:
        if event["event"] == "start":
            kept = [checkpoint for checkpoint in kept if checkpoint["step"] <= event["restored"]]
        elif event["event"] == "checkpoint":
            kept.append(event)
    return kept


def _lines(path: Path) -> list[bytes]:
    try:
        return path.read_bytes().splitlines()
    except FileNotFoundError:
        return []
    except OSError as error:
        raise StorageError(f"{path}: cannot be read: {error.strerror}.") from None


def _parsed(line: bytes) -> Event | None:
    try:
        event = json.loads(line.decode())
    except (ValueError, RecursionError):
        return None
    if not isinstance(event, dict) or not isinstance(event.get("event"), str):
        return None
    where = WHERE.get(event["event"])
    return event if where is None or type(event.get(where)) is int else None
