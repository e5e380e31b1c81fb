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
from dynaquant_core.cli.runs import Found, found_in, standing
from dynaquant_core.cli.stored import StoreSource, tensor_table
from dynaquant_core.errors import (
    CheckpointNotFoundError,
    DynaQuantError,
    EmptyStoreError,
    NotAStoreError,
    UnsupportedStateError,
)
from dynaquant_core.plugins import read_tree
from dynaquant_core.plugins.checking import DiskUse, disk_use, verify_checkpoint
from dynaquant_core.plugins.marker import Marker
from dynaquant_core.plugins.reading import has_gone, staying
from dynaquant_core.store import CheckpointInfo
from dynaquant_core.store.catalogue import Catalogue
from dynaquant_core.store.export import brief
from dynaquant_core.store.info import Problem
from dynaquant_core.store.trail import find_link, open_link, read_link

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
        if step not in (None, self._marker.step):
            return super().info(step)
        return find_link(Catalogue(self._folder).scan(), self._marker.link, self._folder).info

    def load(self, step: int) -> Any:
        """What the checkpoint holds itself, or a step that it builds on."""
        if step != self._marker.step:
            return super().load(step)
        return read_link(self._folder, self._marker.link)

    def whole(self, step: int, *, trust: bool) -> Any:
        """The state with the framework's own objects; of a step below only what a checkpoint holds."""
        if step != self._marker.step:
            return super().load(step)
        with staying(self._folder, self._marker.link):
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
        folders: of the checkpoints; what a framework has removed since is left out.
    """

    def __init__(self, path: Path, folders: Sequence[Path]) -> None:
        self._path = path
        self._all: list[Path] = []
        self._skipped: list[Problem] = []
        found = [one for folder in folders if (one := self._looked_at(folder)) is not None]
        self._steps = standing(found)

    def _looked_at(self, folder: Path) -> Found | None:
        try:
            found = found_in(folder)
        except DynaQuantError as error:
            if has_gone(folder):
                return None
            name = str(folder.relative_to(self._path))
            step = max(map(int, re.findall(r"\d+", folder.name)), default=0)  # an epoch's number is lower
            self._skipped.append(Problem(name, step, " ".join(str(error).split())))
            found = None
        self._all.append(folder)
        return found

    @property
    def is_gone(self) -> bool:
        """Whether all the folders were removed before they could be looked at."""
        return not self._all

    def infos(self) -> list[CheckpointInfo]:
        """One record a step, ascending; raises NotAStoreError where they are of several runs."""
        self._require_one_run()
        return [info for info, _ in self.listed()]

    def listed(self) -> list[tuple[CheckpointInfo, Path | None]]:
        """The records of all runs and their folders, by ascending step."""
        return [(one.info, one.folder) for rivals in self._steps.values() for one in rivals]

    def skipped(self) -> list[str]:
        """Folders that cannot be read, and those that the framework has saved over."""
        unread = [f"{problem.name}: {problem.reason}" for problem in self._skipped]
        return unread + self._overwritten()

    def info(self, step: int | None = None) -> CheckpointInfo:
        """The record of a step; None: of the highest step that can be read, and what was passed over."""
        found = self._of(step).info
        if step is not None:
            return found
        for problem in self._skipped:
            logger.warning("passed over a checkpoint that cannot be read: %s", problem)
        return replace(found, skipped=(*found.skipped, *self._skipped))

    def load(self, step: int) -> Any:
        """What the checkpoint holds itself, to compare with others of its run."""
        self._require_one_run()
        found = self._of(step)
        with staying(found.folder, found.link):
            return read_link(found.folder, found.link)

    def whole(self, step: int, *, trust: bool) -> Any:
        """The state with the framework's own objects."""
        found = self._of(step)
        with staying(found.folder, found.link):
            return read_whole(found.folder, trust=trust)

    def folders(self) -> dict[int, Path]:
        """Each step's own, where one run has it."""
        return {step: one.folder for step, (one, *rivals) in self._steps.items() if not rivals}

    def disk(self) -> DiskUse | None:
        """What all folders take."""
        return disk_use(self._all)

    def tensors(self, step: int) -> list[dict[str, Any]]:
        """The tensors of a step."""
        found = self._of(step)
        with staying(found.folder, found.link), open_link(found.folder, found.link) as chain:
            return tensor_table(chain.last.entry.path)

    def verify(self, *, deep: bool) -> list[str]:
        """Every folder that stays; a file that several of them share is read once."""
        sound: set[tuple[int, int]] = set()
        problems = []
        for folder in self._all:
            found = verify_checkpoint(folder, deep=deep, sound=sound)
            if found and not has_gone(folder):
                problems += [f"{folder.relative_to(self._path)}: {problem}" for problem in found]
        return problems + self._overwritten()

    def checked(self) -> str:
        """The checkpoints, and the folders, of which several may hold one."""
        return f"{counted(len(self.listed()), 'checkpoint')} in {counted(len(self._all), 'folder')}"

    def _overwritten(self) -> list[str]:
        found = []
        for folder in self._all:
            with suppress(DynaQuantError):  # damaged, which is told as that, or removed since
                found.append(overwritten(folder, Marker.read(folder)))
        return [said for said in found if said]

    def _of(self, step: int | None) -> Found:
        if not self._steps:
            raise EmptyStoreError(f"{self._path}: none of its checkpoints can be read; {self.skipped()[0]}")
        if step is None:
            self._require_one_run()
        found = self._steps.get(max(self._steps) if step is None else step)
        if found is None:
            near = sorted(sorted(self._steps, key=lambda other: abs(other - (step or 0)))[:3])
            listed = ", ".join(map(str, near))
            raise CheckpointNotFoundError(f"{self._path} holds no step {step}; the nearest are {listed}.")
        if len(found) > 1:
            raise self._several_runs(found)
        return found[0]

    def _require_one_run(self) -> None:
        for found in self._steps.values():
            if len(found) > 1:
                raise self._several_runs(found)

    def _several_runs(self, found: Sequence[Found]) -> NotAStoreError:
        folders = [one.folder if one.folder.parent == self._path else one.folder.parent for one in found]
        names = brief([repr(str(folder.relative_to(self._path))) for folder in folders])
        return NotAStoreError(
            f"{self._path} holds checkpoints of several runs, as those of step {found[0].info.step} in "
            f"{names}; give the folder of one of them."
        )
