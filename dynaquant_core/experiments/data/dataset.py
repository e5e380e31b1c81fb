"""The protocol of a dataset, and the one way its random numbers are drawn."""

from __future__ import annotations

import hashlib
import os
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import xxhash
from numpy.typing import NDArray
from pydantic import BaseModel
from torch import Tensor

from dynaquant_core.errors import ExperimentError

__all__ = [
    "IGNORED",
    "Batch",
    "Dataset",
    "at_home",
    "data_root",
    "drawn",
    "drawn_digest",
    "even_split",
    "file_digest",
    "is_there",
    "leading",
    "locate",
]

#: What a source begins with that lies inside an installed package.
PACKAGE = "package:"

#: Target of a place that is not scored.
IGNORED = -100

#: (inputs, targets): what the model takes, and int64 labels of what it should say.
Batch = tuple[Tensor, Tensor]


class Dataset(Protocol):
    """Training batches and two fixed evaluation sets.

    Attributes:
        classes: number of different targets (characters of the vocabulary, or image labels).
        search: batches that the search for a configuration may look at.
        heldout: batches that only the report looks at.
        part: how many leading batches of ``search`` make up the small part that rework is measured on.
    """

    classes: int
    search: list[Batch]
    heldout: list[Batch]
    part: int

    def batch(self, seed: int, step: int) -> Batch:
        """The batch of a step (0 is the first): the same for the same two numbers, in any process."""
        ...


def drawn(purpose: str, *numbers: int) -> np.random.Generator:
    """A generator that depends on nothing but its arguments, so that a resumed run draws the same.

    Example:
        >>> bool(drawn("flip", 0, 7).random() == drawn("flip", 0, 7).random())
        True
    """
    word = int.from_bytes(hashlib.blake2b(purpose.encode(), digest_size=4).digest(), "little")
    return np.random.default_rng([word, *numbers])


def drawn_digest(section: BaseModel, drawing: int) -> str:
    """Hex digest of what decides data that is drawn: its section, NumPy's version and the way of drawing."""
    words = f"{drawing} {np.__version__} {section.model_dump_json()}"
    return hashlib.blake2b(words.encode(), digest_size=16).hexdigest()


def even_split(items: NDArray[Any], size: int) -> list[NDArray[Any]]:
    """Cuts into as few parts of at most ``size`` as possible, equal within one, so that their mean is fair.

    Example:
        >>> [len(part) for part in even_split(np.arange(7), 3)]
        [3, 2, 2]
    """
    return np.array_split(items, -(-len(items) // size))


def leading(batches: list[Batch], most: int) -> int:
    """How many batches from the front hold at most ``most`` items together (at least one batch)."""
    totals = np.cumsum([len(inputs) for inputs, _ in batches])
    return max(1, int((totals <= most).sum()))


def data_root() -> Path:
    """Folder that relative data sources are looked up in: ``DYNAQUANT_DATA``, by default ../shared/data."""
    return at_home(os.environ.get("DYNAQUANT_DATA", "../shared/data"))


def at_home(path: str) -> Path:
    """The path with its ``~`` put in full; as it is where there is no such home."""
    try:
        return Path(path).expanduser()
    except RuntimeError:
        return Path(path)


def is_there(path: Path) -> bool:
    """Whether a path exists; what the system refuses to look for (a name too long) does not."""
    try:
        return path.exists()
    except (OSError, ValueError):
        return False


def locate(source: str) -> Path:
    """The path of a data source: as given, or under the data root; or inside an installed package.

    Args:
        source: a path, or ``package:NAME/FILE`` (NAME as it is installed or imported; it is not run).

    Raises:
        ExperimentError: it is at neither place; or there is no such package, or no such file in it.
    """
    if source.startswith(PACKAGE):
        return _packaged(source)
    for path in (at_home(source), data_root() / source):
        if is_there(path):
            return path
    raise ExperimentError(
        f"data source {source!r} exists neither at that path nor under the data root {str(data_root())!r}; "
        f"set DYNAQUANT_DATA to the folder that holds it."
    )


def _packaged(source: str) -> Path:
    package, _, file = source.removeprefix(PACKAGE).partition("/")
    module = package.replace("-", "_")
    found = find_spec(module) if module.isidentifier() else None
    if found is None or not found.submodule_search_locations:
        raise ExperimentError(
            f"data source {source!r}: no package {package!r} is installed; install it with: "
            f"pip install {package}."
        )
    path = Path(found.submodule_search_locations[0]) / file
    if not is_there(path):
        raise ExperimentError(f"data source {source!r}: the package {package!r} has no {file!r}.")
    return path


def file_digest(path: Path) -> str:
    """Hex digest of a file's bytes.

    Raises:
        ExperimentError: it cannot be read.
    """
    digest = xxhash.xxh3_128()
    try:
        with path.open("rb") as file:
            while chunk := file.read(1 << 22):
                digest.update(chunk)
    except OSError as error:
        raise ExperimentError(f"data: {path} cannot be read: {error.strerror}.") from None
    return digest.hexdigest()
