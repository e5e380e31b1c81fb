"""Looks for damage in a checkpoint's folder without changing anything; and says what folders cost."""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from dynaquant_core.errors import DynaQuantError
from dynaquant_core.format import FileReader
from dynaquant_core.plugins.marker import Marker
from dynaquant_core.plugins.reading import LOOKS, still_holds
from dynaquant_core.store.catalogue import Entry
from dynaquant_core.store.disk import guarded
from dynaquant_core.store.trail import open_link

__all__ = ["DiskUse", "disk_use", "verify_checkpoint"]


def verify_checkpoint(
    folder: Path, *, deep: bool = False, sound: set[tuple[int, int]] | None = None
) -> list[str]:
    """What is wrong with the checkpoint and with all that it builds on, one sentence a problem.

    Of a checkpoint that is replaced meanwhile, what is wrong with the new one.

    Args:
        folder: with the marker.
        deep: decode every tensor too.
        sound: (device, inode) of files whose bytes were found good; read here, and added to.
    """
    known = set() if sound is None else sound
    problems: list[str] = []
    for _ in range(LOOKS):
        try:
            marker = Marker.read(folder)
        except DynaQuantError as error:
            return [str(error)]
        problems = _looked_through(folder, marker, known, deep=deep)
        if not problems or still_holds(folder, marker.link):
            break
    return problems


def _looked_through(folder: Path, marker: Marker, known: set[tuple[int, int]], *, deep: bool) -> list[str]:
    problems = []
    try:
        if marker.rest is not None:
            marker.rest.check(folder)
        with open_link(folder, marker.link) as chain:
            for link in chain.links:
                problems += _problems(link.entry, known)
            if deep and not problems:
                chain.hold()
    except DynaQuantError as error:
        problems.append(str(error))
    return problems


def _problems(entry: Entry, known: set[tuple[int, int]]) -> list[str]:
    try:
        with guarded("look at", entry.path):
            status = entry.path.stat()
        inode = status.st_dev, status.st_ino
        if inode in known:
            return []
        with FileReader(entry.path) as reader:
            reader.verify()
    except DynaQuantError as error:
        return [f"{entry.path.name}: {error}"]
    known.add(inode)
    return []


@dataclass(frozen=True, slots=True)
class DiskUse:
    """Bytes of some folders.

    Args:
        linked: on disk, a file with several names counted once.
        copied: what they would take if each were copied elsewhere by itself.
    """

    linked: int
    copied: int


def disk_use(folders: Iterable[Path]) -> DiskUse:
    """What the files directly in ``folders`` take; a folder that goes meanwhile does not count.

    Raises:
        StorageError: a folder cannot be listed.
    """
    sizes: dict[tuple[int, int], int] = {}
    copied = 0
    for folder in folders:
        for status in _files(folder):
            sizes[status.st_dev, status.st_ino] = status.st_size
            copied += status.st_size
    return DiskUse(sum(sizes.values()), copied)


def _files(folder: Path) -> list[os.stat_result]:
    with guarded("list", folder), suppress(FileNotFoundError), os.scandir(folder) as entries:
        return [
            entry.stat(follow_symlinks=False) for entry in entries if entry.is_file(follow_symlinks=False)
        ]
    return []
