"""Built-in exporters: a decoded state as a file that other programs read.

Both write beside the target and take its name by one rename, so an existing file is replaced whole or not at
all.
"""

from __future__ import annotations

import errno
import logging
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch
from torch import Tensor

from dynaquant_core.errors import UnsupportedStateError
from dynaquant_core.state import flatten
from dynaquant_core.state.leaves import Path as LeafPath
from dynaquant_core.state.leaves import dotted
from dynaquant_core.store.commit import atomic_path, remove_abandoned
from dynaquant_core.store.described import PLAIN
from dynaquant_core.store.disk import require_target
from dynaquant_core.store.plain import without_code

__all__ = ["brief", "replace_natively", "to_pt", "to_safetensors", "write_natively", "write_tensors"]

logger = logging.getLogger(__name__)

#: Names that a warning has room for.
NAMED = 5
#: What a safetensors file calls what it says of itself.
OWN_NAME = "__metadata__"
#: In what further tensors may lie, and tensors.
NODES = (dict, list, tuple, Tensor, np.ndarray)


def to_pt(state: Any, path: str | os.PathLike[str]) -> None:
    """Writes a state with ``torch.save``, so that ``torch.load(path, weights_only=True)`` reads it.

    NumPy arrays become tensors, those of text or dates lists of text, NumPy scalars and time spans numbers
    (seconds), dates and paths text; the log warns of all that comes back as something else, of numbers and
    text as equal ones aside.  Tied tensors stay tied.

    Args:
        state: a tree as a store returns it.
        path: of the new file.

    Raises:
        UnsupportedStateError: an array has a dtype that torch does not have; names its path.
        UnsafePathError: the path names no file, or something else than a file stands there.
        StorageError: the system refused; an existing file is as before.
    """
    plain, changed = without_code(state)
    replace_natively(plain, path)
    # Random streams of a Checkpointer are put back from tensors as from arrays.
    told = [dotted(place) for place in changed if place[:1] != ("rng",)]
    if told:
        logger.warning(
            "%s: torch.load reads no NumPy arrays, time spans, dates or paths unless it may run code, so "
            "what were such are tensors, lists of text, seconds and text: %s",
            path,
            brief(told),
        )


def replace_natively(state: Any, path: str | os.PathLike[str]) -> None:
    """Writes a state with ``torch.save`` as it is, for exporters of one file.

    Args:
        state: anything that can be pickled.
        path: of the new file.

    Raises:
        UnsafePathError: the path names no file, or something else than a file stands there.
        StorageError: the system refused; an existing file is as before.
    """

    def write(temporary: Path) -> None:
        with temporary.open("wb") as file:
            write_natively(state, file)

    _replace(Path(path), write)


def write_natively(state: Any, file: IO[bytes]) -> None:
    """torch.save into an open file.

    Raises:
        OSError: a write failed, of which torch makes a RuntimeError without a reason.
    """
    try:
        torch.save(state, file)
    except RuntimeError as error:
        if isinstance(error.__context__, OSError):
            raise error.__context__ from error
        raise OSError(errno.EIO, "torch.save could not finish writing") from error


def to_safetensors(
    state: Any, path: str | os.PathLike[str], metadata: Mapping[str, str] | None = None
) -> None:
    """Writes a state's tensors and arrays, by dotted name, as a safetensors file.

    A tied tensor is written once, under its first name.  Everything that is no tensor is left out, and of
    two that come to one dotted name the later gets another; the log warns of both.

    Args:
        state: a tree as a store returns it.
        path: of the new file.
        metadata: what it shall say of itself beside its format.

    Raises:
        UnsupportedStateError: the format does not have a tensor's dtype, or keeps its name for itself.
        StorageError: the system refused; an existing file is as before.
    """
    leaves = flatten(state).leaves
    held = [leaf for leaf in leaves if leaf.source != "data"]
    tensors = {leaf.name: leaf.tensor.cpu().contiguous() for leaf in held}
    _separate(tensors)

    _replace(Path(path), lambda temporary: write_tensors(tensors, temporary, metadata))
    others = list(_beside(state, (), {leaf.path for leaf in leaves if leaf.source == "data"}))
    if others:
        logger.warning("%s: safetensors holds tensors alone; left out: %s", path, brief(others))
    renamed = [leaf.name for leaf in held if leaf.name != dotted(leaf.path)]
    if renamed:
        logger.warning("%s: of tensors with one dotted name the later is called: %s", path, brief(renamed))


def brief(names: Sequence[str]) -> str:
    """Some names, the first few where they are many.

    Example:
        >>> brief("abcdefg")
        'a, b, c, d, e and 2 more'
    """
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return f"{', '.join(names[:NAMED])}{more}"


def _beside(value: Any, path: LeafPath, data: AbstractSet[LeafPath]) -> Iterator[str]:
    """Where a tree holds what is no tensor; a list of such is one place, and None nothing.

    Args:
        value: of a node.
        path: its own.
        data: of nodes whose leaf is no tensor either (long lists of numbers, dates).
    """
    if path in data:
        yield dotted(path)
    elif isinstance(value, dict):
        for key, child in value.items():
            yield from _beside(child, (*path, key), data)
    elif isinstance(value, list | tuple) and any(isinstance(each, NODES) for each in value):
        for index, child in enumerate(value):
            yield from _beside(child, (*path, index), data)
    elif isinstance(value, list | tuple):
        if value:
            yield dotted(path)
    elif not isinstance(value, Tensor | np.ndarray) and value is not None:
        yield dotted(path)


def write_tensors(
    tensors: Mapping[str, Tensor], path: Path, metadata: Mapping[str, str] | None = None
) -> None:
    """Writes a safetensors file in place, readable for whom the umask lets.

    Args:
        tensors: by name, contiguous, no two of them in one storage.
        path: of the file.
        metadata: what it says of itself beside its format.

    Raises:
        UnsupportedStateError: the format does not have a tensor's dtype, or keeps its name for itself.
        OSError: a write failed, of which safetensors makes an error of its own.
    """
    if OWN_NAME in tensors:  # it would be written, and nothing reads it
        raise UnsupportedStateError(
            f"safetensors keeps the name {OWN_NAME!r} for its metadata and can hold no tensor of that name; "
            "export to pt, or save the tensor under another name."
        )
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    path.touch()
    mode = path.stat().st_mode  # safetensors writes for its owner only
    try:
        save_file(dict(tensors), path, metadata={**PLAIN, **(metadata or {})})
    except (SafetensorError, ValueError, KeyError) as error:
        refused = re.search(r"os error (\d+)", str(error))
        if refused:
            raise OSError(int(refused[1]), os.strerror(int(refused[1]))) from error
        raise UnsupportedStateError(f"safetensors cannot hold this state: {error}.") from error
    path.chmod(mode)


def _separate(tensors: dict[str, Tensor]) -> None:
    """Copies tensors that share storage with an earlier one (views of it): the format has no views."""
    seen: set[int] = set()
    for name, tensor in tensors.items():
        start = tensor.untyped_storage().data_ptr()
        if tensor.numel() and (start in seen or tensor.untyped_storage().nbytes() != tensor.nbytes):
            tensors[name] = tensor.clone()
        seen.add(start)


def _replace(path: Path, write: Callable[[Path], None]) -> None:
    path = require_target(path)
    with atomic_path("export to", path) as temporary:
        write(temporary)
    remove_abandoned(path)
