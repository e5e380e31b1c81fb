"""What the operating system may refuse, said in this project's words.

Every OSError of a store passes through `guarded`; what to do about it depends on its number.
"""

from __future__ import annotations

import errno
import logging
import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from dynaquant_core.errors import ConfigError, NotAStoreError, StorageError, UnsafePathError
from dynaquant_core.store.names import LOCK_FILE, PINS_FILE, parse_name

__all__ = [
    "file_identity",
    "followed",
    "guarded",
    "is_dangling",
    "is_gone",
    "make_folder",
    "path_from",
    "require_another",
    "require_space",
    "require_target",
    "storage_error",
    "sync_files",
    "sync_folder",
    "warn_of_unwritable",
]

logger = logging.getLogger(__name__)

#: "s3://bucket/x", and what a Path leaves of it; a single letter is a drive.
ADDRESS = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/")

#: Free space asked for before a save, as a multiple of its estimated size.
SPACE_FACTOR = 1.2

#: What the user can do, by errno.
ADVICE = {
    errno.ENOSPC: "free some space or lower keep_last or keep_within",
    errno.EDQUOT: "free some space in your quota or lower keep_last or keep_within",
    errno.EACCES: "grant this user read and write permission or choose another folder",
    errno.EPERM: "grant this user read and write permission or choose another folder",
    errno.EROFS: "remount the file system for writing or choose another folder",
    errno.EIO: "check the disk; the other checkpoints are untouched",
    errno.EMFILE: "close files or raise the limit on open files",
    errno.ENFILE: "close files or raise the limit on open files",
    errno.ENAMETOOLONG: "choose a shorter path",
    errno.ENOENT: "check that the folder exists",
    errno.EEXIST: "remove the file that is in the way or choose another path",
    errno.ENOTDIR: "choose a path whose parents are folders",
    errno.ELOOP: "replace the symbolic link by the file itself",
}


@contextmanager
def guarded(action: str, path: Path) -> Iterator[None]:
    """Translates any OSError of the block into StorageError naming ``action``, ``path`` and what to do."""
    try:
        yield
    except StorageError as error:
        cause = error.__cause__
        while isinstance(cause, StorageError) and not cause.errno:  # a sentence, not what the system said
            cause = cause.__cause__
        if error.errno or not isinstance(cause, OSError):
            raise
        raise storage_error(action, path, cause) from cause
    except OSError as error:
        raise storage_error(action, path, error) from error


def storage_error(action: str, path: Path, error: OSError) -> StorageError:
    """The StorageError for ``error``; its ``errno`` is kept."""
    number = error.errno or errno.EIO
    advice = ADVICE.get(number, "check the file system, then save again")
    reason = error.strerror or str(error)
    translated = StorageError(f"Cannot {action} {str(path)!r}: {reason}; {advice}.")
    translated.errno = number
    return translated


def is_gone(error: BaseException) -> bool:
    """Whether ``error`` says that a file does not exist (any more)."""
    return isinstance(error, FileNotFoundError) or isinstance(error.__cause__, FileNotFoundError)


def path_from(argument: str, given: object) -> Path:
    """What a user gave as ``argument``, as a path; raises ConfigError where it can be none, or is an address.

    Example:
        >>> path_from("path", "checkpoints").name
        'checkpoints'
    """
    try:
        path = Path(given)  # type: ignore[arg-type]  # what is none of them raises
    except TypeError:
        raise ConfigError(
            f"{argument} must be a text or an os.PathLike of text, got {type(given).__name__} {given!r:.80}."
        ) from None
    if "\0" in str(path):
        raise ConfigError(f"{argument} must hold no null character, got {str(path)!r:.80}.")
    if ADDRESS.match(str(path)):  # a folder called "s3:" would be made here, and remote storage stay empty
        address = re.sub(":/+", "://", str(path), count=1)
        raise ConfigError(
            f"{argument} must lie on a local or mounted disk, got the address {address!r:.80}; copy files "
            "from there, or to there, with its own tools."
        )
    return path


def make_folder(folder: Path) -> None:
    """Makes ``folder`` and its parents; each new entry is durable when this returns.

    Raises:
        NotAStoreError: a file is in the way.
        StorageError: the system refuses.
    """
    with guarded("make the folder", folder):
        if folder.is_dir():
            return
        if folder.exists() or folder.is_symlink():
            raise NotAStoreError(f"{str(folder)!r} is not a folder; give the path of a folder for the store.")
        missing = [folder, *(parent for parent in folder.parents if not parent.exists())]
        for path in reversed(missing):
            path.mkdir(exist_ok=True)
            sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Makes the entries of ``folder`` durable: a rename survives a power loss only after this."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_files(folder: Path) -> None:
    """Makes durable what is in a folder, the folders in it included; what links lead to is somebody else's.

    So is what cannot be opened, or is taken away meanwhile: it is passed over.
    """
    for parent, _, names in os.walk(folder):
        files = (Path(parent, name) for name in names)
        for path in (*(file for file in files if file.is_file() and not file.is_symlink()), Path(parent)):
            try:
                descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            except (FileNotFoundError, PermissionError):
                continue
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)


def warn_of_unwritable(folder: Path) -> None:
    """Says in the log, before hours of work, that a folder will not take what is to be saved there.

    Reading from it is another matter, so it is no error; a save asks the system itself.
    """
    place = next((path for path in (folder, *folder.absolute().parents) if path.exists()), folder)
    if not os.access(place, os.W_OK | os.X_OK):
        logger.warning("%s cannot be written by this user: the next save into %s will fail", place, folder)


def require_space(folder: Path, most: int, estimate: Callable[[], int]) -> None:
    """Refuses a save before its first write where the disk cannot hold it.

    Args:
        folder: where the file goes.
        most: bytes that are enough whatever is written; where they are free nothing more is asked.
        estimate: gives the expected size in bytes, which may take a while; 1.2 times as much must be free.

    Raises:
        StorageError: too little is free.
    """
    with guarded("save into the folder", folder):
        system = os.statvfs(folder)
    free = system.f_bavail * system.f_frsize
    if not system.f_blocks or free >= most:  # some file systems report no sizes at all
        return
    needed = int(estimate() * SPACE_FACTOR)
    if free < needed:
        full = OSError(errno.ENOSPC, f"about {needed:,} bytes are needed and {free:,} are free")
        raise storage_error("save into", folder, full)


def require_target(path: Path) -> Path:
    """Refuses a path that a rename would not give to a regular file, or would take from something else.

    Returns:
        The path; where it is a symbolic link, what that points to: whoever reads there gets what is written.

    Raises:
        UnsafePathError: it names no file; it is, or leads to, a folder, device, pipe or socket, or one of a
            store's files: a checkpoint that is there, its pins or its lock.
    """
    if not path.name:
        raise UnsafePathError(f"{str(path)!r} names no file; give the path of the file to write.")
    with guarded("look at", path):
        target = followed(path)
        where = repr(str(path)) if target == path else f"{str(path)!r} leads to {str(target)!r}, which"
        own = "a store's own file" if target.name in (LOCK_FILE, PINS_FILE) else None
        if target.exists() and parse_name(target.name) is not None:
            own = "a checkpoint of a store"
        if own:
            raise UnsafePathError(f"{where} is {own} and is not written over; give another path.")
        if target.exists() and not target.is_file():
            raise UnsafePathError(f"{where} is a folder, device or pipe; give the path of the file to write.")
        return target


def followed(path: Path) -> Path:
    """Where a path that a user gave leads: what was saved through a link is read through it.

    Inside of a store nothing is followed: there a link is no checkpoint.
    """
    return Path(os.path.realpath(path)) if os.path.islink(path) else path  # noqa: PTH114 - raises nothing


def is_dangling(path: Path) -> bool:
    """Whether this is a symbolic link that leads to nothing; not one that leads round in a circle.

    Raises:
        OSError: the system refuses to look.
    """
    return path.is_symlink() and not path.exists() and not followed(path).is_symlink()


def require_another(path: Path, source: Path) -> None:
    """Refuses to write a file over the one that it is made of: what is stored is not all that was there.

    Raises:
        UnsafePathError: both are one file.
    """
    with guarded("look at", path):
        if path.exists() and source.is_file() and path.samefile(source):
            raise UnsafePathError(f"{str(path)!r} is what is read; give another path to write.")


def file_identity(path: str | Path) -> tuple[int, int, int]:
    """(inode, size, modification time in ns): changes when the file is replaced or written to."""
    status = os.stat(path, follow_symlinks=False)  # noqa: PTH116 - asked of every file at every save
    return status.st_ino, status.st_size, status.st_mtime_ns
