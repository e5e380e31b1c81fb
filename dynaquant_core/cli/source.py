"""PATH: a store, a framework's output folder, one checkpoint of either, or a .dq file.

The commands that only read take any of them.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Protocol, TypeVar

import typer

from dynaquant_core.cli.folders import FolderSource, OutputSource
from dynaquant_core.cli.overwritten import is_pointer
from dynaquant_core.cli.stored import FileSource, StoreSource
from dynaquant_core.errors import CheckpointNotFoundError, EmptyStoreError
from dynaquant_core.plugins import find_checkpoints, is_checkpoint
from dynaquant_core.plugins.checking import DiskUse
from dynaquant_core.store import CheckpointInfo
from dynaquant_core.store.disk import followed, guarded, is_dangling, path_from
from dynaquant_core.store.names import parse_name

__all__ = ["PathArgument", "Source", "StepOption", "open_source", "read_one"]

Result = TypeVar("Result")

#: Looks at a folder that changes meanwhile.
LOOKS = 5
CHANGES = "{} changes too fast to be read; name a step, or pin one."

PathArgument = Annotated[
    Path,
    typer.Argument(
        metavar="PATH", help="A store, a framework's output folder, one checkpoint of either, or a .dq file."
    ),
]
StepOption = Annotated[
    int | None, typer.Option("--step", metavar="N", help="Which step; default: the newest.")
]


class Source(Protocol):
    """What can be looked at."""

    def infos(self) -> list[CheckpointInfo]:
        """Every checkpoint that can be read, by ascending step."""
        ...

    def listed(self) -> list[tuple[CheckpointInfo, Path | None]]:
        """The same for people: of all runs that are there, each with the folder that it has to itself."""
        ...

    def skipped(self) -> list[str]:
        """What cannot be read and why, one sentence a file."""
        ...

    def info(self, step: int | None = None) -> CheckpointInfo:
        """One checkpoint; None: the newest."""
        ...

    def load(self, step: int) -> Any:
        """The state of a step, decoded, as far as a checkpoint holds it itself."""
        ...

    def whole(self, step: int, *, trust: bool) -> Any:
        """The state of a step with the framework's own objects, whose reading may run code, if trusted."""
        ...

    def folders(self) -> dict[int, Path]:
        """Step -> the folder that it lies in, where each has its own."""
        ...

    def disk(self) -> DiskUse | None:
        """What the folders of a framework's checkpoints take; None where there are none."""
        ...

    def tensors(self, step: int) -> list[dict[str, Any]]:
        """Name, dtype, shape, role, part, bytes and codecs of every tensor of a step."""
        ...

    def verify(self, *, deep: bool) -> list[str]:
        """What is wrong, one sentence a problem."""
        ...

    def checked(self) -> str:
        """How much `verify` looks at, in words."""
        ...


def open_source(path: Path) -> Source:
    """Opens what is at ``path`` for reading.

    Raises:
        ConfigError: an address of remote storage.
        EmptyStoreError: nothing is there, or an empty folder.
        NotAStoreError: a folder of something else.
        CorruptFileError: a file that is no checkpoint.
        StorageError: the system refuses.
    """
    path = path_from("PATH", path)
    with guarded("look at", path):
        return _opened(path)


def _opened(path: Path) -> Source:
    if is_checkpoint(path):
        return FolderSource(path)
    if (beside := _folder_beside(path)) is not None:
        return FolderSource(beside)
    if path.is_dir():
        stored = any(parse_name(file.name) for file in path.glob("*.dq"))
        return StoreSource(path) if stored else _output(path)
    if is_dangling(path):
        raise EmptyStoreError(
            f"{str(path)!r} is a symbolic link to {str(followed(path))!r}, which does not exist; give "
            "what it should lead to, or make the link anew."
        )
    if path.is_symlink() or path.exists():
        return FileSource(path)
    raise EmptyStoreError(
        f"{str(path)!r} does not exist; give a store, an output folder, a checkpoint or a .dq file."
    )


def _output(path: Path) -> Source:
    for _ in range(LOOKS):
        below = find_checkpoints(path)
        if not below:
            return StoreSource(path)  # says that there is none
        source = OutputSource(path, below)
        if not source.is_gone:
            return source
    raise CheckpointNotFoundError(CHANGES.format(path))


def read_one(path: Path, step: int | None, look: Callable[[Source], Result]) -> Result:
    """What ``look`` finds of the step that is meant; again, if none was named, where that is gone meanwhile.

    A run that goes on may retire the one that was found before it is read.

    Raises:
        CheckpointNotFoundError: the step is not there, or none stays for long enough.
        Others as `open_source`, and as ``look``.
    """
    said = ""
    for _ in range(LOOKS):
        source = open_source(path)
        try:
            return look(source)
        except CheckpointNotFoundError as error:
            if step is not None or str(error) == said:  # twice the same: nothing changes there
                raise
            said = str(error)
    raise CheckpointNotFoundError(CHANGES.format(path))


def _folder_beside(path: Path) -> Path | None:
    """The folder that a Composer checkpoint's file, or a link to it, stands for; None: it is no such file."""
    file = Path(os.path.realpath(path))  # of a circle of links `resolve` raises what is no OSError
    if not file.name:  # the root
        return None
    folder = file.with_name(f"{file.name}.dynaquant")
    return folder if is_checkpoint(folder) and is_pointer(file) else None
