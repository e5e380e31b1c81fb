"""Text of a bounded size from a file, a folder, or Python's own standard library, in a fixed order."""

from __future__ import annotations

import os
import sysconfig
from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path

import xxhash

from dynaquant_core.errors import ExperimentError
from dynaquant_core.experiments.data.dataset import at_home, data_root, is_there, locate

__all__ = ["STDLIB", "fingerprint", "read"]

#: The source that needs no download: it comes with every Python.
STDLIB = "stdlib"

#: Folders of the standard library that are not it (installed packages) or are mostly tables and tests.
NOT_STDLIB = frozenset({"site-packages", "dist-packages", "test", "tests", "idlelib", "lib2to3", "encodings"})


def read(source: str, max_bytes: int) -> str:
    """The text of a source, cut after ``max_bytes`` bytes of UTF-8.

    Args:
        source: ``"stdlib"``, a text file, a folder of them, or a pattern such as ``text/wikitext2_*.txt`` or
            ``books/*/*.txt``; several are joined in the order of their names.
        max_bytes: upper bound of the text's size.

    Raises:
        ExperimentError: missing, unreadable, not text, or empty.
    """
    texts = _stdlib() if source == STDLIB else chain.from_iterable(map(_files, _places(source)))
    text = _bounded(texts, max_bytes)
    if not text:
        raise ExperimentError(f"data source {source!r} holds no text; give a UTF-8 file or a folder of them.")
    return text


def fingerprint(source: str, max_bytes: int) -> str:
    """Hex digest of what `read` returns."""
    return xxhash.xxh3_128_hexdigest(read(source, max_bytes).encode())


def _places(source: str) -> list[Path]:
    """Stars are understood in every name of a path; what stands before the first is taken as it is."""
    pattern = at_home(source)
    if "*" not in str(pattern) or is_there(pattern):
        return [locate(source)]
    first = next(place for place, name in enumerate(pattern.parts) if "*" in name)
    below = Path(*pattern.parts[:first])
    for folder in (below, data_root() / below):
        found = _matching(folder, str(Path(*pattern.parts[first:]))) if is_there(folder) else []
        if found:
            return found
    raise ExperimentError(
        f"data source {source!r} matches no file, neither there nor under the data root "
        f"{str(data_root())!r}; set DYNAQUANT_DATA to the folder that holds them."
    )


def _matching(folder: Path, pattern: str) -> list[Path]:
    """What lies below a folder under such names; a folder among it stands for all that is in it."""
    if any("**" in name != "**" for name in Path(pattern).parts):
        raise ExperimentError(
            f"data source: in the pattern {pattern!r} two stars must be a whole name of the path, as in "
            "'text/**/*.txt'."
        )
    found = set(folder.glob(pattern))
    return sorted(path for path in found if found.isdisjoint(path.parents))


def _bounded(texts: Iterable[str], max_bytes: int) -> str:
    pieces, room = [], max_bytes
    for text in texts:
        encoded = text.encode()
        pieces.append(encoded[:room].decode(errors="ignore"))
        room -= len(encoded)
        if room <= 0:
            break
    return "".join(pieces)


def _stdlib() -> Iterator[str]:
    """Modules of each folder by name, then its folders by name."""
    for folder, folders, files in os.walk(sysconfig.get_path("stdlib")):
        folders[:] = sorted(set(folders) - NOT_STDLIB)
        for name in sorted(files):
            if name.endswith(".py"):
                yield _text(Path(folder) / name)


def _files(path: Path) -> Iterator[str]:
    if not path.is_dir():
        yield _text(path)
        return
    try:
        found = sorted(path.rglob("*"), key=lambda file: file.relative_to(path).as_posix())
    except OSError as error:
        raise ExperimentError(f"data: {path} cannot be listed: {error.strerror}.") from None
    for file in found:
        if file.is_file() and not any(part.startswith(".") for part in file.relative_to(path).parts):
            yield _text(file)


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ExperimentError(
            f"data: {path} is not UTF-8 text ({error.reason} at byte {error.start})."
        ) from None
    except OSError as error:
        raise ExperimentError(f"data: {path} cannot be read: {error.strerror}.") from None
