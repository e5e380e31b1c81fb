"""A folder that an exporter makes: it appears under its name whole, or not at all."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from dynaquant_core.errors import UnsafePathError
from dynaquant_core.store.disk import followed, guarded, sync_files, sync_folder
from dynaquant_core.store.names import temporary_name

__all__ = ["copy_files", "new_folder"]


@contextmanager
def new_folder(action: str, path: Path) -> Iterator[Path]:
    """Gives an empty folder to fill; the block's end commits it as ``path``, an error removes it.

    A folder with something in it is not written into: what an older checkpoint left there would pass for a
    part of the new one.  Nor is it removed, since whose files are in it nobody can tell.

    Args:
        action: what is done to ``path``, for the message.
        path: where nothing is, or an empty folder; missing parents are made.

    Raises:
        UnsafePathError: something is at ``path``.
        StorageError: the system refused; nothing is at ``path`` unless only the last step, making the folder
            that it lies in durable, failed.
    """
    with guarded(action, path):
        target = followed(path)
        _require_free(path, target)
        target.parent.mkdir(parents=True, exist_ok=True)
        fresh = target.with_name(temporary_name(target.name))
        fresh.mkdir()
        try:
            yield fresh
            sync_files(fresh)  # before its name says that it is whole
            fresh.rename(target)
        except BaseException:
            with suppress(OSError):
                shutil.rmtree(fresh)
            raise
        sync_folder(target.parent)


def copy_files(source: Path, fresh: Path, is_left_out: Callable[[Path], bool]) -> None:
    """Copies what is in a folder, and in the folders in it, into a `new_folder`.

    Args:
        source: the folder; ``fresh`` may be made inside of it and is not copied.
        fresh: as `new_folder` gives it.
        is_left_out: asked of each file and folder.

    Raises:
        OSError: the system refused.
    """
    for path in _files(source, fresh, is_left_out):
        copy = fresh / path.relative_to(source)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, copy)


def _files(folder: Path, fresh: Path, is_left_out: Callable[[Path], bool]) -> Iterator[Path]:
    for path in sorted(folder.iterdir()):
        if is_left_out(path):
            continue
        if path.is_dir():
            if not path.samefile(fresh):
                yield from _files(path, fresh, is_left_out)
        elif path.is_file():
            yield path


def _require_free(path: Path, target: Path) -> None:
    if not target.name:
        raise UnsafePathError(f"{str(path)!r} names no folder; give the path of a folder that is to be made.")
    if target.is_dir() and not any(target.iterdir()):
        return
    if os.path.lexists(target):
        found = "a folder with files in it" if target.is_dir() else "a file"
        raise UnsafePathError(
            f"{str(path)!r} exists already: expected nothing there or an empty folder, found {found}; give a "
            "folder that is to be made, or remove this one first."
        )
