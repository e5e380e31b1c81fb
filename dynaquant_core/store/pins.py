"""Pinned steps: checkpoints that retention never removes, kept in one small file that is replaced whole."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from dynaquant_core.errors import CorruptFileError, StorageError, UnsafePathError
from dynaquant_core.format.regular import RegularFile
from dynaquant_core.store.commit import write_atomically
from dynaquant_core.store.disk import is_gone
from dynaquant_core.store.names import PINS_FILE

__all__ = ["read_pins", "write_pins"]

#: A larger file is not one of ours; a million pins fit.
MAX_BYTES = 1 << 24


def read_pins(folder: Path) -> frozenset[int]:
    """The pinned steps of a store; none where nothing was ever pinned.

    Raises:
        CorruptFileError: the file is damaged; nothing may be removed until it is repaired or deleted.
        StorageError: the file cannot be read.
    """
    path = folder / PINS_FILE
    try:
        file = RegularFile(path)
    except UnsafePathError as error:
        raise _damaged(path, "it is not a regular file") from error
    except StorageError as error:
        if is_gone(error):
            return frozenset()
        raise
    try:
        if file.nbytes > MAX_BYTES:
            raise _damaged(path, "it is too large")
        data = bytes(file.read(0, file.nbytes))
    finally:
        file.close()
    try:
        steps = json.loads(data)["pins"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise _damaged(path, "it is not the JSON that a store writes") from error
    if not isinstance(steps, list) or not all(type(step) is int and step >= 0 for step in steps):
        raise _damaged(path, "'pins' is not a list of steps")
    return frozenset(steps)


def write_pins(folder: Path, steps: Iterable[int]) -> None:
    """Replaces the pinned steps, durably.

    Raises:
        StorageError: the system refused, or no reader would take so many; the pins are as before.
    """
    data = (json.dumps({"format": 1, "pins": sorted(steps)}, indent=1) + "\n").encode()
    if len(data) > MAX_BYTES:
        raise StorageError(
            f"{str(folder / PINS_FILE)!r} would hold {len(data)} bytes of pins and may hold {MAX_BYTES}; "
            f"unpin some steps first."
        )
    write_atomically(folder / PINS_FILE, data)


def _damaged(path: Path, why: str) -> CorruptFileError:
    return CorruptFileError(
        f"The pins file {str(path)!r} is damaged: {why}; repair it, or delete it to unpin all."
    )
