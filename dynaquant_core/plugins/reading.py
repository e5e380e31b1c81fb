"""Reading checkpoints of frameworks without a run: one folder, or all below an output folder."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

import torch

from dynaquant_core.errors import CheckpointNotFoundError, DynaQuantError, StorageError
from dynaquant_core.plugins.marker import MARKER, Marker, is_checkpoint
from dynaquant_core.plugins.rest import read_rest
from dynaquant_core.store.catalogue import Catalogue
from dynaquant_core.store.info import CheckpointInfo
from dynaquant_core.store.meta import BaseLink
from dynaquant_core.store.trail import find_link, read_link

__all__ = [
    "describe",
    "find_checkpoints",
    "has_gone",
    "on_marker",
    "read_tree",
    "staying",
    "still_holds",
    "with_rest",
]

#: Levels of folders below the one given that may be checkpoints.
DEPTH = 4
#: Looks at a folder that is replaced under every look.
LOOKS = 10
#: Seconds before the second look at a checkpoint that cannot be read.
PAUSE = 0.1

Result = TypeVar("Result")


def read_tree(
    folder: str | os.PathLike[str],
    *,
    names: str | Iterable[str] | None = None,
    device: str | torch.device | None = None,
    weights_only: bool = True,
) -> Any:
    """The state in a checkpoint's folder; no run is needed, and nothing is locked or changed.

    Args:
        folder: the one with the marker.
        names: only these tensors and what they lie in, as `CheckpointStore.load`; objects that the checkpoint
            could not hold are then left out.
        device: where the tensors go; None: the CPU.
        weights_only: refuse objects whose reading could run code.

    Raises:
        NotAStoreError: the folder is no checkpoint.
        CorruptFileError, CheckpointNotFoundError, MissingBaseError, StorageError: it cannot be read.
        UnsupportedStateError: ``weights_only`` refused an object.
    """
    place = Path(folder)

    def action(marker: Marker) -> Any:
        tree = read_link(place, marker.link, names=names, device=device)
        return tree if names is not None else with_rest(place, marker, tree, weights_only=weights_only)

    return on_marker(place, action)


def on_marker(folder: Path, action: Callable[[Marker], Result]) -> Result:
    """Runs ``action`` on the folder's marker, again where the checkpoint was replaced meanwhile.

    Raises:
        NotAStoreError: the folder has no marker; whatever ``action`` raises on one that stands still.
    """
    for _ in range(LOOKS):
        marker = Marker.read(folder)
        try:
            return action(marker)
        except DynaQuantError:
            if Marker.read(folder) == marker:
                raise
    raise StorageError(f"{str(folder)!r} is replaced faster than it can be read; try again.")


def has_gone(folder: Path, link: BaseLink | None = None) -> bool:
    """Whether a checkpoint that could not be read is not there any more, so that it was no damage.

    Args:
        folder: with the marker that was.
        link: of that marker; None: whatever checkpoint is there counts.
    """
    for pause in (0.0, PAUSE):  # who removes a folder by hand may take its files before its marker
        time.sleep(pause)
        if not (is_checkpoint(folder) if link is None else still_holds(folder, link)):
            return True
    return False


def still_holds(folder: Path, link: BaseLink) -> bool:
    """Whether the folder's checkpoint is that one."""
    try:
        return Marker.read(folder).link == link
    except DynaQuantError:
        return False


@contextmanager
def staying(folder: Path, link: BaseLink) -> Iterator[None]:
    """What the block reads is the checkpoint that was found.

    Raises:
        CheckpointNotFoundError: the framework has removed or replaced it meanwhile.
    """
    went = CheckpointNotFoundError(f"{folder}: step {link.step} was removed while it was read; try again.")
    try:
        yield
    except DynaQuantError as error:
        if not has_gone(folder, link):
            raise
        raise went from error
    if not still_holds(folder, link):
        raise went


def with_rest(folder: Path, marker: Marker, tree: Any, *, weights_only: bool) -> Any:
    """``tree`` with what the checkpoint could not hold back in its places."""
    if marker.rest is None:
        return tree
    return read_rest(marker.rest.check(folder), weights_only=weights_only).into(tree)


def describe(folder: str | os.PathLike[str]) -> CheckpointInfo:
    """What is known about the checkpoint in a folder without decoding it; raises as `read_tree`."""
    place = Path(folder)
    return on_marker(place, lambda marker: find_link(Catalogue(place).scan(), marker.link, place).info)


def find_checkpoints(folder: str | os.PathLike[str]) -> list[Path]:
    """Folders with a marker: the one given or, where it has none, all below it, each once, by name.

    A link to a checkpoint that lies below as well is passed over.

    Example:
        >>> find_checkpoints("nowhere")
        []
    """
    found: dict[Path, Path] = {}
    for place in sorted(_below(Path(folder), DEPTH), key=lambda place: (place.is_symlink(), place)):
        found.setdefault(place.resolve(), place)
    return sorted(found.values())


def _below(folder: Path, depth: int) -> Iterator[Path]:
    if (folder / MARKER).is_file():
        yield folder
    elif depth:
        try:
            with os.scandir(folder) as entries:
                below = sorted(entry.path for entry in entries if _is_folder(entry))
        except OSError:  # gone, no folder, or not ours to look into
            return
        for path in below:
            if not Path(path).name.startswith("."):  # one of these is still being filled
                with suppress(OSError):  # not ours to look into, as a disk's lost+found
                    yield from _below(Path(path), depth - 1)


def _is_folder(entry: os.DirEntry[str]) -> bool:
    """Whether it is one, or leads to one; not where the system refuses to look, as at a circle of links."""
    try:
        return entry.is_dir()
    except OSError:
        return False
