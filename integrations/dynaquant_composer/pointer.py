"""The file that Composer takes for the checkpoint: it says what to read, and ``torch.load`` reads it.

A Composer checkpoint is one file, which the trainer links to from a temporary folder and hands to
``torch.load``.  Ours is a file of 1 kB beside a folder, ``ep1-ba20-rank0.pt`` beside
``ep1-ba20-rank0.pt.dynaquant``.  Unpickling it calls `open_checkpoint`, which gives the dictionary that a
native file would have held.  So nothing of Composer is replaced: ``load_path``, ``autoresume`` and everything
else that loads a Composer checkpoint works, even where nobody imported this package.
"""

from __future__ import annotations

import io
import os
import sys
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any, Final

import torch

from dynaquant_core.errors import CheckpointNotFoundError
from dynaquant_core.plugins import is_checkpoint, read_tree
from dynaquant_core.plugins.small_files import write_atomically

__all__ = [
    "SUFFIX",
    "Pointer",
    "folder_of",
    "is_pointer",
    "open_checkpoint",
    "read_by",
    "stop_reading_by",
    "was_read",
    "write_pointer",
]

#: What the name of a checkpoint's folder has more than its file's.
SUFFIX: Final = ".dynaquant"

Read = Callable[[Path], Any]

#: No pointer is longer.
MAX_BYTES: Final = 4096

#: How to read, and for whom, where a trainer of ours is loading; it lets go of a trainer that is gone.
_readers: list[tuple[weakref.WeakMethod[Read], weakref.ref[Any]]] = []

#: The folders read since the last `read_by`.
_found: list[Path] = []


def folder_of(file: str | os.PathLike[str]) -> Path:
    """The folder beside a checkpoint's file.

    Example:
        >>> folder_of("run/ep1-ba20-rank0.pt").name
        'ep1-ba20-rank0.pt.dynaquant'
    """
    path = Path(file)
    return path.with_name(path.name + SUFFIX)


def write_pointer(file: Path) -> None:
    """Makes ``file`` stand for the checkpoint in the folder beside it; an existing file is replaced whole.

    Raises:
        StorageError: the system refused.
    """
    buffer = io.BytesIO()
    torch.save(Pointer(folder_of(file).name), buffer)
    write_atomically(file, buffer.getvalue())


def is_pointer(file: Path) -> bool:
    """Whether ``file`` is such a file, and no native checkpoint; nothing is unpickled."""
    try:
        return file.stat().st_size <= MAX_BYTES and open_checkpoint.__name__.encode() in file.read_bytes()
    except OSError:
        return False


class Pointer:
    """What the file holds: the name of the folder beside it, and the function that reads it.

    Args:
        name: of the folder.
    """

    def __init__(self, name: str) -> None:
        self.name = name

    def __reduce__(self) -> tuple[Callable[[str], Any], tuple[str]]:
        return open_checkpoint, (self.name,)


def open_checkpoint(name: str) -> Any:
    """The dictionary that Composer saved, read from the folder ``name`` beside the file being loaded.

    Raises:
        CheckpointNotFoundError: the folder is not there, or there is no telling where "beside" is.
        Others as `plugins.read_tree`.
    """
    file = _file_being_loaded()
    if file is None:
        raise CheckpointNotFoundError(
            f"this Composer checkpoint lies in the folder {name!r} beside its file, and only the file's "
            f"content is at hand; load it by its path."
        )
    folder = file.resolve().with_name(name)
    if not is_checkpoint(folder):
        raise CheckpointNotFoundError(
            f"the checkpoint of {str(file.resolve())!r} lies in the folder {name!r} beside it, which is not "
            f"there or not whole; copy both together, or make one file with: dynaquant export --to composer."
        )
    _found.append(folder)
    readers = _readers_now()
    for read in readers[1:]:
        read(folder)
    return readers[0](folder) if readers else read_tree(folder, weights_only=False)


def read_by(read: Read, trainer: Any) -> None:
    """From now on ``read``, a bound method, reads what pointers stand for.

    All that were given for one trainer read, each for itself: every callback goes on from what was loaded.

    Args:
        read: given the folder.
        trainer: that is loading: its state.  For other trainers, and for who calls ``torch.load``, nothing
            is read by it.
    """
    stop_reading_by(read)
    _readers.append((weakref.WeakMethod(read), weakref.ref(trainer)))
    _found.clear()


def stop_reading_by(read: Read) -> None:
    """Ends `read_by`."""
    _readers[:] = [pair for pair in _readers if pair[0]() not in (None, read)]


def was_read() -> Path | None:
    """The folder of the checkpoint that was read last since `read_by`, whoever read it; None: none was."""
    return _found[-1] if _found else None


def _readers_now() -> list[Read]:
    """Those of the trainer that is loading: one whose loading failed may be alive, and reads for nobody."""
    loading = {id(frame.f_locals.get("state")) for frame in _frames() if _is_composers(frame)} - {id(None)}
    return [read for given, of in _readers if id(of()) in loading and (read := given()) is not None]


def _is_composers(frame: FrameType) -> bool:
    """Told by its module, whose functions all call a trainer's state ``state``."""
    return str(frame.f_globals.get("__name__")).startswith("composer.")


def _file_being_loaded() -> Path | None:
    """What the innermost ``torch.load`` was given: unpickling does not tell its functions where it reads."""
    for frame in _frames():
        if _is_torch_load(frame):
            given = frame.f_locals.get("f")
            is_path = isinstance(given, (str, os.PathLike))  # its name is not the whole of it
            named = given if is_path else getattr(given, "name", None)  # an open file knows its path
            return Path(named) if isinstance(named, (str, os.PathLike)) else None
    return None


def _is_torch_load(frame: FrameType) -> bool:
    """Told by its name: ``torch.load`` itself may be somebody's wrapper, which calls the true one."""
    return frame.f_code.co_name == "load" and frame.f_globals.get("__name__") == "torch.serialization"


def _frames() -> Iterator[FrameType]:
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        yield frame
        frame = frame.f_back
