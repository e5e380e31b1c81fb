"""How checkpoints appear in the folder: once committed, in an order that a crash survives.

Committed is what `plugins` put into the folder beside the pointer.  Then the link to the latest is moved,
then the pointer is written; and a checkpoint goes in the opposite order, pointer first.  So a committed
folder without a pointer that is newer than all others is a save whose process died before it could say so,
and an older one is what a rotation left behind.
"""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Iterable
from pathlib import Path

from dynaquant_composer.pointer import SUFFIX, folder_of, write_pointer
from dynaquant_core.plugins import MARKER, is_checkpoint

__all__ = ["finish", "publish", "still_there", "sweep"]

logger = logging.getLogger(__name__)


def publish(file: Path, latest: Path | None) -> None:
    """Lets a committed checkpoint appear.

    Args:
        file: of the checkpoint.
        latest: the link to it, or None.
    """
    if latest is not None:
        latest.parent.mkdir(parents=True, exist_ok=True)
        temporary = latest.with_name(f".{latest.name}.tmp-{os.getpid()}")
        temporary.unlink(missing_ok=True)
        temporary.symlink_to(os.path.relpath(file, latest.parent))
        temporary.replace(latest)
    write_pointer(file)


def finish(folder: Path, latest: Path | None) -> None:
    """Lets those appear that a process committed and did not live to tell.

    Args:
        folder: of the checkpoints; it may be missing.
        latest: the link to the latest, or None.
    """
    shown, hidden = _shown_and_hidden(folder)
    newest = max(map(_committed_at, shown), default=0)
    for file in sorted(hidden, key=_committed_at):
        if _committed_at(file) > newest:
            logger.info("%s was committed when its process died: it is the latest now", file)
            publish(file, latest)


def sweep(folder: Path) -> None:
    """Removes what saves and rotations that died have left; only for who is about to train there."""
    _, hidden = _shown_and_hidden(folder)
    unfinished = [file for file in _files(folder) if not is_checkpoint(folder_of(file))]
    for file in (*hidden, *unfinished):
        logger.info("removing %s, left by a process that died", folder_of(file))
        shutil.rmtree(folder_of(file), ignore_errors=True)


def still_there(names: Iterable[str]) -> list[str]:
    """Those of a run's files that stand for a whole checkpoint of ours, in their order."""
    return [name for name in names if Path(name).is_file() and is_checkpoint(folder_of(name))]


def _shown_and_hidden(folder: Path) -> tuple[list[Path], list[Path]]:
    """Files of committed checkpoints: those that are there, and those that are not."""
    whole = [file for file in _files(folder) if is_checkpoint(folder_of(file))]
    return [file for file in whole if file.exists()], [file for file in whole if not file.exists()]


def _committed_at(file: Path) -> int:
    return (folder_of(file) / MARKER).stat().st_mtime_ns


def _files(folder: Path) -> list[Path]:
    """The file that belongs to each of our folders."""
    found = sorted(folder.glob(f"*{SUFFIX}"))
    return [path.with_name(path.name.removesuffix(SUFFIX)) for path in found if path.is_dir()]
