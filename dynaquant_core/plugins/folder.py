"""One checkpoint, one folder: filled, replaced, copied and removed so that a crash never shows half of one.

Files of the new checkpoint are put beside what is there; the marker takes its name last, in one rename, and
names the new ones; only then does what it no longer names go.  While that is under way a lock keeps others
out and a pending mark tells what a dead save left behind from somebody's store.
"""

from __future__ import annotations

import logging
import shutil
import stat
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import TypeAlias

from dynaquant_core.errors import DynaQuantError, StorageError, StoreNotEmptyError
from dynaquant_core.plugins.marker import MARKER, Marker, RestFile
from dynaquant_core.store.commit import write_atomically
from dynaquant_core.store.disk import guarded, make_folder, sync_files, sync_folder
from dynaquant_core.store.kept import KeptFile
from dynaquant_core.store.lock import WriterLock
from dynaquant_core.store.names import LOCK_FILE, is_leftover, parse_name
from dynaquant_core.store.trail import open_link

__all__ = ["Filling", "Place", "copy_checkpoint", "remove_abandoned", "remove_folder", "replacing"]

logger = logging.getLogger(__name__)

PENDING = ".dynaquant.pending"

#: What a checkpoint could not hold; the other name serves while the first is still the old checkpoint's.
REST_NAMES = ("rest.pt", "rest-1.pt")


class Place:
    """A folder that is being filled.

    Args:
        folder: it exists and is locked.
        target: what the folder will be called in the end.

    Attributes:
        settled: whether the checkpoint is committed.
    """

    def __init__(self, folder: Path, target: Path) -> None:
        self.folder = folder
        self.target = target
        self.settled = False
        self._before = set(_own_names(folder))
        self._old_rest = _rest_name(folder)

    def write_rest(self, data: bytes) -> RestFile:
        """Writes what the checkpoint could not hold."""
        name = next(name for name in REST_NAMES if name != self._old_rest)
        write_atomically(self.folder / name, data)
        return RestFile.of(name, data)

    def settle(self, marker: Marker, files: Iterable[str]) -> None:
        """Commits the checkpoint of ``marker``, which stands on ``files``; what else of ours was there goes.

        What the framework and others have put into the folder survives a power loss as well from then on.

        Raises:
            StorageError: the system refused; what was there before is still the folder's checkpoint.
        """
        with guarded("make durable", self.folder):
            sync_files(self.folder)  # native files and links have no commit of their own
            sync_folder(self.folder.absolute().parent)
        marker.write(self.folder)
        self.settled = True
        self._remove_but({*files, MARKER, *([marker.rest.name] if marker.rest else ())})

    def undo(self) -> None:
        """Takes out what a failed save has put in."""
        self._remove_but(self._before)

    def _remove_but(self, keep: set[str]) -> None:
        """What cannot be removed stays until the next save; the checkpoint is whole with it, too."""
        try:
            for name in sorted(set(_own_names(self.folder)) - keep):
                (self.folder / name).unlink(missing_ok=True)
        except OSError as error:
            logger.warning("not everything old could be removed from %s: %s", self.folder, error)


#: Gives the place on entry and ends the filling of it.
Filling: TypeAlias = AbstractContextManager[Place]


def replacing(target: Path) -> Filling:
    """Gives a place to fill; the block is to `Place.settle` it.

    Files of others in the folder stay.  A file that stands where the folder should (the framework's native
    checkpoint of that name) gives way at the end.  The block may begin long after the call: a folder that is
    there at the call has to be there still, as what others have put into it belongs to the checkpoint.

    Raises:
        StoreNotEmptyError: the folder is somebody's store.
        StoreLockedError: another process is filling it.
        StorageError: the system refused, or the folder was renamed, replaced or removed since the call.
    """
    return _replacing(target, _folder_at(target))


@contextmanager
def _replacing(target: Path, before: tuple[int, int] | None) -> Iterator[Place]:
    if before not in (None, _folder_at(target)):
        raise StorageError(
            f"{str(target)!r} is not the folder that was to be saved into: it was renamed, replaced or "
            "removed before its checkpoint was in it; call wait() after a save before you touch its folder."
        )
    with guarded("look at", target):
        if target.is_symlink() and (not target.is_dir() or (target / MARKER).exists()):
            target.unlink()  # it names another checkpoint
        is_file = target.exists() and not target.is_dir()
    folder = target.with_name(f".{target.name}.dynaquant-{uuid.uuid4().hex}") if is_file else target
    is_new = not folder.exists()
    make_folder(folder)
    try:
        with _locked(folder):
            place = Place(folder, target)
            _touch(folder / PENDING)
            try:
                yield place
            except BaseException:
                if not place.settled:
                    place.undo()
                raise
    except BaseException:
        if is_new:
            with suppress(OSError):
                folder.rmdir()  # only if nothing is left in it
        raise
    if is_file:
        _take_its_name(place)


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    _require_free(folder)
    lock = WriterLock(folder)
    lock.acquire(take_over=False)
    try:
        yield
    finally:
        lock.release(remove=True)


def copy_checkpoint(source: Path, target: Path, note: Mapping[str, str] | None = None) -> Marker:
    """Gives a checkpoint a second folder; hard links where there can be some.

    Args:
        source: a checkpoint.
        target: is made, or replaced.
        note: of the copy; None: that of the source.

    Raises:
        NotAStoreError, CorruptFileError, CheckpointNotFoundError: ``source`` is no whole checkpoint.
        Others as `replacing`.
    """
    marker = Marker.read(source)
    with open_link(source, marker.link) as chain:
        files = [KeptFile.of(link.entry, link.identity) for link in chain.links]
    rest = None if marker.rest is None else marker.rest.check(source).read_bytes()
    with replacing(target) as place:
        names = [file.put(place.folder).path.name for file in files]
        written = None if rest is None else place.write_rest(rest)
        kept = marker.note if note is None else note
        copied = Marker(marker.framework, marker.link, marker.versions, written, kept)
        place.settle(copied, names)
    return copied


def remove_folder(folder: Path) -> None:
    """Removes a checkpoint and all that is in its folder; a native file is removed too, a link only itself.

    The marker goes first, so that no crash leaves half of a checkpoint, and the pending mark last, so that
    what a crash leaves of the rest is known for what it is.

    Raises:
        StorageError: the system refused.
    """
    with guarded("remove", folder):
        if folder.is_symlink() or folder.is_file():
            folder.unlink()
            return
        with suppress(FileNotFoundError):
            (folder / MARKER).replace(folder / PENDING)
        if folder.exists():
            for path in folder.iterdir():
                if path.is_dir() and not path.is_symlink():
                    shutil.rmtree(path)
                elif path.name != PENDING:
                    path.unlink()
            shutil.rmtree(folder)


def remove_abandoned(folder: Path, is_left: Callable[[], bool]) -> bool:
    """Removes a folder that nobody is writing into, if it still is to be removed once it is locked.

    Args:
        folder: of a save or a removal that died.
        is_left: whether that is so; asked while no other process can change the answer.

    Raises:
        StoreLockedError: somebody is writing into it.
        StorageError: the system refused.
    """
    lock = WriterLock(folder)
    lock.acquire(take_over=False)
    try:
        left = is_left()
        if left:
            remove_folder(folder)
        return left
    finally:
        lock.release(remove=True)


def _folder_at(path: Path) -> tuple[int, int] | None:
    """What tells a folder from another of its name; None where there is none, or a link."""
    try:
        status = path.lstat()
    except OSError:
        return None
    return (status.st_dev, status.st_ino) if stat.S_ISDIR(status.st_mode) else None


def _require_free(folder: Path) -> None:
    """Refuses a store, which keeps its lock file; checkpoints without either are what a removal left."""
    names = set(_own_names(folder))
    theirs = [name for name in names if parse_name(name)]
    if theirs and (folder / LOCK_FILE).exists() and not names & {MARKER, PENDING}:
        raise StoreNotEmptyError(
            f"{str(folder)!r} holds {len(theirs)} checkpoint file(s) of a store; save into another folder."
        )


def _own_names(folder: Path) -> Iterator[str]:
    """Names in the folder that a plugin may have written."""
    with guarded("list", folder):
        names = [path.name for path in folder.iterdir()]
    for name in names:
        known = name in {MARKER, PENDING, *REST_NAMES} or is_leftover(name) or _is_half(name)
        if known or parse_name(name):
            yield name


def _is_half(name: str) -> bool:
    """Whether it is what a save that died while writing a small file leaves."""
    return any(name.startswith(f"{whole}.tmp-") for whole in (MARKER, *REST_NAMES))


def _rest_name(folder: Path) -> str | None:
    """The rest file that the folder's present checkpoint needs."""
    try:
        rest = Marker.read(folder).rest
    except DynaQuantError:
        return None
    return rest.name if rest else None


def _touch(path: Path) -> None:
    with guarded("write", path):
        path.touch()
        sync_folder(path.parent)


def _take_its_name(place: Place) -> None:
    """Puts the finished folder where the native file is."""
    with guarded("replace", place.target):
        place.target.unlink()
        place.folder.rename(place.target)
        sync_folder(place.target.absolute().parent)
