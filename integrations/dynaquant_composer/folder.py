"""How checkpoints appear in the folder: once committed, in an order that a crash survives.

Committed is what `plugins` put into the folder beside the pointer.  Then the link to the latest is moved,
then the pointer is written, then the folder is marked as shown; and a checkpoint goes in the opposite order:
it is marked, then the pointer goes.  So a committed folder without a pointer that is newer than all others,
native files included, is a save whose process died before it could say so, and a marked one is what a
rotation left behind, or what a user took away.
"""

from __future__ import annotations

import logging
import os
from contextlib import suppress
from pathlib import Path
from typing import Final

from dynaquant_composer.names import Names
from dynaquant_composer.pointer import folder_of, is_pointer, write_pointer
from dynaquant_core.errors import DynaQuantError
from dynaquant_core.plugins import MARKER, is_checkpoint
from dynaquant_core.plugins.marker import Marker
from dynaquant_core.plugins.small_files import guarded

__all__ = ["REMOVING", "SHOWN", "finish", "note_of", "publish", "retire", "unmark"]

logger = logging.getLogger(__name__)

#: In the folder of a checkpoint that is going to be removed.
REMOVING: Final = ".dynaquant.removing"

#: In the folder of one that has appeared: where its file is missing, somebody has removed that.
SHOWN: Final = ".dynaquant.shown"


def publish(file: Path, latest: Path | None) -> bool:
    """Lets a committed checkpoint appear.

    Args:
        file: of the checkpoint.
        latest: the link to it, or None.

    Returns:
        False where there is none any more: nothing may point to it.

    Raises:
        StorageError: the system refused.
    """
    if not is_checkpoint(folder_of(file)):
        logger.warning("%s was removed since it was saved: it does not appear", folder_of(file))
        return False
    try:
        if latest is not None:
            _link(latest, file)
    finally:  # without the link it can be loaded, too
        write_pointer(file)
        _mark_shown(file)
    return True


def finish(names: Names, latest: Path | None) -> None:
    """Lets those appear that a process committed and did not live to tell, and mends a dead link.

    Args:
        names: of the callback's checkpoints.
        latest: its link to the latest, or None.
    """
    whole = [file for file in names.files() if _is_ours(file, latest)]
    shown = [file for file in whole if file.exists()]
    for file in shown:
        _mark_shown(file)  # its process may have died before it did, or been of an older version
    native = [file.stat().st_mtime_ns for file in names.visible() if not is_pointer(file)]
    newest = max([*map(_committed_at, shown), *native], default=0)
    for file in sorted(set(whole) - set(shown), key=_committed_at):
        if _committed_at(file) > newest and not _is_given_up(folder_of(file)):
            logger.info("%s was committed when its process died: it is the latest now", file)
            publish(file, latest)
            shown.append(file)
    if latest is not None and shown and _is_dead(latest, names):
        last = max(shown, key=_committed_at)
        logger.warning("%s pointed to no whole checkpoint; it points to %s now", latest, last)
        _link(latest, last)


def retire(file: Path) -> None:
    """Takes a checkpoint's file away; the folder is marked before, and may be removed from then on.

    Raises:
        StorageError: the system refused.
    """
    with guarded("remove", file):
        with suppress(FileNotFoundError, NotADirectoryError):
            (folder_of(file) / REMOVING).touch()
        file.unlink(missing_ok=True)


def unmark(file: Path) -> None:
    """A checkpoint that is saved anew under a name is not the one that was to be removed, or was."""
    for mark in (REMOVING, SHOWN):
        with suppress(FileNotFoundError, NotADirectoryError):
            (folder_of(file) / mark).unlink()


def note_of(file: Path, latest: Path | None) -> dict[str, str]:
    """What a checkpoint's marker records of its names, by which `finish` knows its own.

    Not the run's name: it changes with every start where the user gives none.
    """
    return {"file": file.name, "latest": "" if latest is None else os.path.relpath(latest, file.parent)}


def _mark_shown(file: Path) -> None:
    """Where the system refuses, nothing is lost: a file that a user removes then comes back."""
    with suppress(OSError):
        (folder_of(file) / SHOWN).touch()


def _is_given_up(folder: Path) -> bool:
    """Whether a rotation or a user has removed the file of this folder."""
    return any((folder / mark).exists() for mark in (REMOVING, SHOWN))


def _is_ours(file: Path, latest: Path | None) -> bool:
    """Whether it is whole, and was saved by a callback with these names (or before they were recorded)."""
    try:
        note = Marker.read(folder_of(file)).note
    except DynaQuantError:
        return False
    return not note or note == note_of(file, latest)


def _is_dead(latest: Path, names: Names) -> bool:
    """Whether the link leads to what was a checkpoint of ours; a native one is somebody else's."""
    if not latest.is_symlink():
        return False
    file = latest.parent / latest.readlink()
    if not names.holds(file) or (is_checkpoint(folder_of(file)) and file.exists()):
        return False
    return is_pointer(file) or not file.exists()


def _link(latest: Path, file: Path) -> None:
    temporary = latest.with_name(f".{latest.name}.tmp-{os.getpid()}")
    with guarded("link", latest):
        latest.parent.mkdir(parents=True, exist_ok=True)
        temporary.unlink(missing_ok=True)
        temporary.symlink_to(os.path.relpath(file, latest.parent))
        try:
            temporary.replace(latest)
        except OSError:
            temporary.unlink()
            raise


def _committed_at(file: Path) -> int:
    return (folder_of(file) / MARKER).stat().st_mtime_ns
