"""What a framework's plugin wrote: one checkpoint's folder, and an output folder full of them."""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from dynaquant_core.cli.output import counted
from dynaquant_core.cli.overwritten import overwritten, require_current
from dynaquant_core.cli.stored import StoreSource, tensor_table
from dynaquant_core.errors import (
    CheckpointNotFoundError,
    DynaQuantError,
    EmptyStoreError,
    UnsupportedStateError,
)
from dynaquant_core.plugins import describe, read_tree
from dynaquant_core.plugins.checking import DiskUse, disk_use, verify_checkpoint
from dynaquant_core.plugins.marker import Marker
from dynaquant_core.store import CheckpointInfo
from dynaquant_core.store.info import Problem
from dynaquant_core.store.trail import open_link, read_link

__all__ = ["FolderSource", "OutputSource"]

logger = logging.getLogger(__name__)


def read_whole(folder: Path, *, trust: bool) -> Any:
    """The state in a folder with the framework's own objects.

    Raises:
        NotAStoreError: the framework has saved natively over it.
        UnsupportedStateError: reading one of them could run code, and nobody said that this may be.
    """
    require_current(folder, Marker.read(folder))
    try:
        return read_tree(folder, weights_only=not trust)
    except UnsupportedStateError as error:
        raise UnsupportedStateError(f"{error} On the command line that is --trust.") from error


class FolderSource(StoreSource):
    """One checkpoint of a framework: a store whose last step is meant, and never another one.

    Args:
        folder: with the marker.

    Raises:
        CorruptFileError: the marker is damaged.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._folder = folder
        self._marker = Marker.read(folder)

    def info(self, step: int | None = None) -> CheckpointInfo:
        """The record of the checkpoint itself, or of a step that it builds on."""
        return describe(self._folder) if step in (None, self._marker.step) else super().info(step)

    def load(self, step: int) -> Any:
        """What the checkpoint holds itself, or a step that it builds on."""
        if step != self._marker.step:
            return super().load(step)
        return read_link(self._folder, self._marker.link)

    def whole(self, step: int, *, trust: bool) -> Any:
        """The state with the framework's own objects; of a step below only what a checkpoint holds."""
        if step != self._marker.step:
            return super().load(step)
        return read_whole(self._folder, trust=trust)

    def folders(self) -> dict[int, Path]:
        """The checkpoint's own."""
        return {self._marker.step: self._folder}

    def skipped(self) -> list[str]:
        """Damaged files, and what the framework has saved over the checkpoint."""
        said = overwritten(self._folder, self._marker)
        return super().skipped() + ([said] if said else [])

    def disk(self) -> DiskUse | None:
        """What the folder takes."""
        return disk_use([self._folder])

    def verify(self, *, deep: bool) -> list[str]:
        """The checkpoint and all that it builds on."""
        said = overwritten(self._folder, self._marker)
        return verify_checkpoint(self._folder, deep=deep) + ([said] if said else [])


class OutputSource:
    """A framework's output folder: one checkpoint a step, each in a folder of its own.

    Args:
        path: the output folder.
        folders: of the checkpoints; not empty.
    """

    def __init__(self, path: Path, folders: Sequence[Path]) -> None:
        self._path = path
        self._all = list(folders)
        self._skipped: list[Problem] = []
        self._found: dict[int, tuple[CheckpointInfo, Path]] = {}
        for folder in folders:
            self._add(folder)

    def _add(self, folder: Path) -> None:
        """Of several folders of one step, the one committed last stands for it."""
        try:
            info = describe(folder)
        except DynaQuantError as error:
            name = str(folder.relative_to(self._path))
            step = max(map(int, re.findall(r"\d+", folder.name)), default=0)  # an epoch's number is lower
            self._skipped.append(Problem(name, step, " ".join(str(error).split())))
            return
        known = self._found.get(info.step)
        if known is None or info.sequence > known[0].sequence:
            self._found[info.step] = info, folder

    def infos(self) -> list[CheckpointInfo]:
        """One record a step, ascending."""
        return [self._found[step][0] for step in sorted(self._found)]

    def skipped(self) -> list[str]:
        """Folders that cannot be read, and those that the framework has saved over."""
        unread = [f"{problem.name}: {problem.reason}" for problem in self._skipped]
        return unread + self._overwritten()

    def info(self, step: int | None = None) -> CheckpointInfo:
        """The record of a step; None: of the highest step that can be read, and what was passed over."""
        found = self._of(step)[0]
        if step is not None:
            return found
        for problem in self._skipped:
            logger.warning("passed over a checkpoint that cannot be read: %s", problem)
        return replace(found, skipped=(*found.skipped, *self._skipped))

    def load(self, step: int) -> Any:
        """What the checkpoint holds itself."""
        folder = self._of(step)[1]
        return read_link(folder, Marker.read(folder).link)

    def whole(self, step: int, *, trust: bool) -> Any:
        """The state with the framework's own objects."""
        return read_whole(self._of(step)[1], trust=trust)

    def folders(self) -> dict[int, Path]:
        """Each step's own."""
        return {step: folder for step, (_, folder) in sorted(self._found.items())}

    def disk(self) -> DiskUse | None:
        """What all folders take."""
        return disk_use(self._all)

    def tensors(self, step: int) -> list[dict[str, Any]]:
        """The tensors of a step."""
        folder = self._of(step)[1]
        with open_link(folder, Marker.read(folder).link) as chain:
            path = chain.last.entry.path
        return tensor_table(path)

    def verify(self, *, deep: bool) -> list[str]:
        """Every folder; a file that several of them share is read once."""
        sound: set[tuple[int, int]] = set()
        problems = []
        for folder in self._all:
            found = verify_checkpoint(folder, deep=deep, sound=sound)
            problems += [f"{folder.relative_to(self._path)}: {problem}" for problem in found]
        return problems + self._overwritten()

    def checked(self) -> str:
        """The steps, and the folders, of which several may hold one step."""
        return f"{counted(len(self._found), 'checkpoint')} in {counted(len(self._all), 'folder')}"

    def _overwritten(self) -> list[str]:
        found = []
        for folder in self._all:
            with suppress(DynaQuantError):  # damaged, which is told as that, or removed since
                found.append(overwritten(folder, Marker.read(folder)))
        return [said for said in found if said]

    def _of(self, step: int | None) -> tuple[CheckpointInfo, Path]:
        if not self._found:
            raise EmptyStoreError(f"{self._path}: none of its checkpoints can be read; {self.skipped()[0]}")
        found = self._found.get(max(self._found) if step is None else step)
        if found is None:
            near = sorted(sorted(self._found, key=lambda other: abs(other - (step or 0)))[:3])
            listed = ", ".join(map(str, near))
            raise CheckpointNotFoundError(f"{self._path} holds no step {step}; the nearest are {listed}.")
        return found
