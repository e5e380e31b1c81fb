"""The marker: the small file that makes a folder one framework's checkpoint, written last.

A folder without it holds no checkpoint, whatever else is in it; with it, all that it names is there.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import xxhash

from dynaquant_core.errors import CorruptFileError, NotAStoreError, VersionError
from dynaquant_core.store.commit import write_atomically
from dynaquant_core.store.disk import guarded
from dynaquant_core.store.meta import BaseLink

__all__ = ["MARKER", "Marker", "RestFile", "is_checkpoint", "versions_of"]

MARKER = "dynaquant.json"
FORMAT = 1

#: No marker is longer; a file that is, is something else.
MAX_BYTES = 1 << 20

#: Framework -> the distribution it comes in, where that is called otherwise.
DISTRIBUTIONS = {"composer": "mosaicml"}


@dataclass(frozen=True, slots=True)
class RestFile:
    """The file of what a checkpoint could not hold: its name, size in bytes and checksum (xxh3, 64 bits)."""

    name: str
    nbytes: int
    checksum: str

    @classmethod
    def of(cls, name: str, data: bytes) -> RestFile:
        """Describes ``data``."""
        return cls(name, len(data), xxhash.xxh3_64_hexdigest(data))

    def check(self, folder: Path) -> Path:
        """The file's path, once every byte was compared; raises CorruptFileError or StorageError."""
        path = folder / self.name
        with guarded("read", path):
            data = path.read_bytes()
        if RestFile.of(self.name, data) != self:
            raise CorruptFileError(f"{str(path)!r} is not what was saved; take another checkpoint.")
        return path


@dataclass(frozen=True, slots=True)
class Marker:
    """What a checkpoint's folder says about itself.

    Args:
        framework: whose checkpoint it is, as "lightning".
        link: step, commit sequence and digest of the checkpoint among the folder's files.
        versions: of this library, torch and the framework, when it was saved.
        rest: what the checkpoint could not hold; None where there is nothing.
        note: what the plugin has to know of it again, such as names.
    """

    framework: str
    link: BaseLink
    versions: Mapping[str, str]
    rest: RestFile | None = None
    note: Mapping[str, str] = field(default_factory=dict)

    @property
    def step(self) -> int:
        """Completed optimizer steps."""
        return self.link.step

    def write(self, folder: Path) -> None:
        """Commits the marker of ``folder``; when this returns, it survives a power loss."""
        link, rest = self.link, self.rest
        data = {
            "format": FORMAT,
            "framework": self.framework,
            "step": link.step,
            "sequence": link.sequence,
            "digest": link.digest,
            "rest": rest and {"name": rest.name, "nbytes": rest.nbytes, "checksum": rest.checksum},
            "versions": dict(self.versions),
        }
        if self.note:
            data["note"] = dict(self.note)
        write_atomically(folder / MARKER, json.dumps(data, indent=1).encode() + b"\n")

    @classmethod
    def read(cls, folder: Path) -> Marker:
        """Reads the marker of ``folder``.

        Raises:
            NotAStoreError: there is none.
            VersionError: a newer version wrote it.
            CorruptFileError: it is damaged.
        """
        path = folder / MARKER
        with guarded("read", path):
            if not path.is_file():
                raise NotAStoreError(_no_checkpoint(folder))
            with path.open("rb") as file:
                text = file.read(MAX_BYTES)
        try:
            return cls._parsed(json.loads(text), path)
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise CorruptFileError(f"{str(path)!r} is damaged ({error}); take another checkpoint.") from error

    @classmethod
    def _parsed(cls, data: dict[str, Any], path: Path) -> Marker:
        if data["format"] != FORMAT:
            found = f"{data['format']!r:.20}"
            raise VersionError(
                f"{str(path)!r} has format {found}, this version reads {FORMAT}; update dynaquant."
            )
        link = BaseLink(_whole(data["step"]), _whole(data["sequence"]), _text(data["digest"]))
        rest = data["rest"]
        file = rest and RestFile(_name(rest["name"]), _whole(rest["nbytes"]), _text(rest["checksum"]))
        versions = {_text(key): _text(value) for key, value in data["versions"].items()}
        note = {_text(key): _text(value) for key, value in data.get("note", {}).items()}
        return cls(_text(data["framework"]), link, versions, file or None, note)


def is_checkpoint(path: object) -> bool:
    """Whether ``path`` is a folder that holds a whole checkpoint of a framework.

    Nothing is decoded; what is damaged shows when it is read.

    Example:
        >>> is_checkpoint("nowhere"), is_checkpoint(None)
        (False, False)
    """
    try:
        return (Path(path) / MARKER).is_file()  # type: ignore[arg-type]
    except (TypeError, ValueError, OSError):  # a URL, a pipe, no path at all
        return False


def versions_of(framework: str) -> dict[str, str]:
    """Installed versions of this library, torch and the framework, as far as they can be told."""
    installed = {name: _version(DISTRIBUTIONS.get(name, name)) for name in ("dynaquant", "torch", framework)}
    return {name: text for name, text in installed.items() if text is not None}


def _version(distribution: str) -> str | None:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return None


def _no_checkpoint(folder: Path) -> str:
    where = repr(str(folder))
    if folder.is_dir():
        return (
            f"{where} has no {MARKER}: it is no DynaQuant checkpoint, or its save was interrupted; "
            "give another checkpoint."
        )
    if folder.exists():
        return f"{where} is a file; a DynaQuant checkpoint is a folder that holds {MARKER}."
    return f"{where} does not exist; give the folder of a checkpoint."


def _whole(value: object) -> int:
    if type(value) is not int or value < 0:
        raise ValueError(f"expected a whole number, found {value!r:.40}")
    return value


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"expected text, found {value!r:.40}")
    return value


def _name(value: object) -> str:
    """A file's name that leads nowhere else."""
    name = _text(value)
    if Path(name).name != name or name in ("", ".", ".."):
        raise ValueError(f"{name!r:.40} is not a file name")
    return name
