"""What the store itself wrote: a store, and one checkpoint file; read without the store's lock."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from dynaquant_core.cli.output import counted
from dynaquant_core.errors import (
    CheckpointNotFoundError,
    DynaQuantError,
    EmptyStoreError,
    MissingBaseError,
    NotAStoreError,
)
from dynaquant_core.files import load_file
from dynaquant_core.format import FileReader
from dynaquant_core.format.entries import SHARED, StreamEntry
from dynaquant_core.plugins.checking import DiskUse
from dynaquant_core.store import CheckpointInfo, CheckpointStore
from dynaquant_core.store.catalogue import Catalogue, Scan, read_entry
from dynaquant_core.store.chain import chain_of
from dynaquant_core.store.disk import followed

__all__ = ["FileSource", "StoreSource", "tensor_table"]


def nearby_store(folder: Path) -> str:
    """What to give instead of a folder that is no store, such as an experiment's output."""
    inside = sorted({file.parent for pattern in ("*/*.dq", "*/*/*.dq") for file in folder.glob(pattern)})
    return f"give {str(inside[0])!r}, which holds some" if inside else "give the folder of a store"


class StoreSource:
    """A store, read without its lock.

    Args:
        folder: where it is.

    Raises:
        EmptyStoreError: there is no checkpoint in it, not even a damaged one.
        NotAStoreError: it holds other files only.
    """

    def __init__(self, folder: Path) -> None:
        self._store = CheckpointStore(folder)
        self._scan = Catalogue(folder).scan()
        if not self._scan.entries and not self._scan.damaged:
            where = repr(str(folder))
            if self._scan.foreign:
                raise NotAStoreError(f"{where} holds other files and no checkpoint; {nearby_store(folder)}.")
            raise EmptyStoreError(f"{where} is empty; nothing was saved there yet, or the path is wrong.")

    def infos(self) -> list[CheckpointInfo]:
        """Every checkpoint whose index is sound."""
        return [entry.info for entry in self._scan.current().values()]

    def listed(self) -> list[tuple[CheckpointInfo, Path | None]]:
        """The same, and what folder each has of its own."""
        folders = self.folders()
        return [(info, folders.get(info.step)) for info in self.infos()]

    def skipped(self) -> list[str]:
        """Damaged files."""
        return [" ".join(str(item).split()) for item in self._scan.damaged]

    def info(self, step: int | None = None) -> CheckpointInfo:
        """The record of ``step`` as its file tells it; None: of the newest one that is whole."""
        if step is not None:
            return self._store.info(step)
        newest = self._store.newest()
        if newest is None:
            raise EmptyStoreError(f"{str(self._store.path)!r} became empty while it was read; try again.")
        return newest

    def load(self, step: int) -> Any:
        """The state of a step; never falls back to another."""
        return self._store.load(step)

    def whole(self, step: int, *, trust: bool) -> Any:  # noqa: ARG002 - a store holds no foreign objects
        """The same: a store holds all of a state."""
        return self.load(step)

    def folders(self) -> dict[int, Path]:
        """No step has a folder of its own."""
        return {}

    def disk(self) -> DiskUse | None:
        """A store shares nothing with others."""
        return None

    def tensors(self, step: int) -> list[dict[str, Any]]:
        """The tensors of a step."""
        entry = Catalogue(self._store.path).scan().current().get(step)  # a run may have saved meanwhile
        if entry is None:
            self._store.info(step)  # says what there is
            raise CheckpointNotFoundError(f"step {step} came while the store was read; try again.")
        return tensor_table(entry.path)

    def verify(self, *, deep: bool) -> list[str]:
        """Every file of the store, checked."""
        return [str(problem) for problem in self._store.verify(deep)]

    def checked(self) -> str:
        """The checkpoints."""
        return counted(len(self.infos()), "checkpoint")


class FileSource:
    """One checkpoint file: self-contained, or a delta beside the files that it needs.

    Args:
        path: the file, or a link to it.

    Raises:
        CorruptFileError: it is no checkpoint, damaged, or too new.
    """

    def __init__(self, path: Path) -> None:
        self._path = path  # for messages
        self._file = followed(path)
        try:
            self._entry = read_entry(self._file)
        except DynaQuantError as error:
            if str(path) in str(error):
                raise
            raise type(error)(f"{path}: {error}") from error

    def infos(self) -> list[CheckpointInfo]:
        """The one record."""
        return [self._entry.info]

    def listed(self) -> list[tuple[CheckpointInfo, Path | None]]:
        """The one record; it has no folder of its own."""
        return [(self._entry.info, None)]

    def skipped(self) -> list[str]:
        """Nothing is passed over in one file."""
        return []

    def info(self, step: int | None = None) -> CheckpointInfo:
        """The record; ``step`` may only be the file's own."""
        if step not in (None, self._entry.step):
            raise CheckpointNotFoundError(f"{self._path}: this file is step {self._entry.step}, not {step}.")
        return self._entry.info

    def load(self, step: int) -> Any:
        """The state; a delta is read through the store that it lies in."""
        self.info(step)
        if self._entry.base_digest is None:
            return load_file(self._file)
        scan = self._with_bases()
        current = scan.current()[step]
        if current.digest != self._entry.digest:
            raise CheckpointNotFoundError(
                f"{self._path}: step {step} was saved again as {current.path.name}; load that one."
            )
        return CheckpointStore(self._file.parent).load(step)

    def _with_bases(self) -> Scan:
        """The folder of a delta, with all that it builds on in it."""
        scan = Catalogue(self._file.parent).scan()
        if scan.by_digest(self._entry.digest) is None:
            raise MissingBaseError(
                f"{self._path}: builds on the checkpoint of step {self._entry.info.base_step}, and files are "
                f"found by the names that a store gave them; give it its name back beside its base, or "
                f"export it from its store."
            )
        chain_of(scan, self._entry)
        return scan

    def whole(self, step: int, *, trust: bool) -> Any:  # noqa: ARG002 - a file holds no foreign objects
        """The same: a file holds all of a state."""
        return self.load(step)

    def folders(self) -> dict[int, Path]:
        """It has no folder of its own."""
        return {}

    def disk(self) -> DiskUse | None:
        """It shares nothing with others."""
        return None

    def tensors(self, step: int) -> list[dict[str, Any]]:
        """The tensors of the file."""
        self.info(step)
        return tensor_table(self._file)

    def verify(self, *, deep: bool) -> list[str]:
        """Every checksum, and that what it builds on is there; with ``deep`` everything decoded as well."""
        try:
            with FileReader(self._file) as reader:
                reader.verify()
            if self._entry.base_digest is not None:
                self._with_bases()
            if deep:
                self.load(self._entry.step)
        except DynaQuantError as error:
            return [str(error)]
        return []

    def checked(self) -> str:
        """The file."""
        return counted(1, "checkpoint")


def tensor_table(path: Path) -> list[dict[str, Any]]:
    """What a file's index says about each tensor, and about the streams that a part's tensors share."""
    with FileReader(path) as reader:
        index = reader.index
    own: defaultdict[int, list[StreamEntry]] = defaultdict(list)
    shared: defaultdict[str, list[StreamEntry]] = defaultdict(list)
    for stream in index.streams:
        (shared[stream.part] if stream.tensor == SHARED else own[stream.tensor]).append(stream)
    rows = [
        {
            "name": tensor.name,
            "dtype": tensor.dtype,
            "shape": list(tensor.shape),
            "role": tensor.role,
            "part": tensor.part,
            "raw_bytes": tensor.spec.nbytes,
        }
        | stored(own[number])
        for number, tensor in enumerate(index.tensors)
    ]
    nothing = {"dtype": "-", "shape": [], "role": "-", "raw_bytes": 0}
    return rows + [{"name": "(shared)", "part": part} | nothing | stored(shared[part]) for part in shared]


def stored(streams: Iterable[StreamEntry]) -> dict[str, Any]:
    """Bytes and codecs of some streams."""
    from dynaquant_core.coding.registry import codec_by_id

    streams = list(streams)
    return {
        "stored_bytes": sum(stream.nbytes for stream in streams),
        "codecs": [f"{stream.kind}:{codec_by_id(stream.codec).name}" for stream in streams],
    }
