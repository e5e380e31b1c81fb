"""Which checkpoint folder is whole, which is left from a save that died, and which is the newest."""

from __future__ import annotations

import io
import logging
import os
import re
from pathlib import Path
from typing import Any, Final, NamedTuple

import torch

from dynaquant_accelerate.shadows import SAVE, STUB, is_stub
from dynaquant_core.errors import DynaQuantError
from dynaquant_core.plugins import is_checkpoint
from dynaquant_core.plugins.marker import Marker

__all__ = [
    "OPTIMIZER",
    "SIGN",
    "Identity",
    "InstallFirst",
    "identity",
    "is_native",
    "is_sign",
    "is_unfinished",
    "newest",
    "number_of",
    "of_two_saves",
    "put_sign",
    "stub_in",
    "weights_in",
]

logger = logging.getLogger(__name__)

#: Stands where Accelerate looks for weights; not one of ours reads it.
SIGN: Final = "pytorch_model.bin"

#: `SIGN` while it is written.
_PART: Final = ".sign.part"

#: Names under which Accelerate writes the weights of each model.
_WEIGHTS: Final = re.compile(r"model(_\d+)?\.safetensors|pytorch_model(_\d+)?\.bin")

#: Where Accelerate keeps the first optimizer; a stub in a checkpoint of ours.
OPTIMIZER: Final = "optimizer.bin"

#: Where Accelerate keeps random streams, the last of its files that every checkpoint has.
_STREAMS: Final = "random_states_0.pkl"

#: Larger files are weights and optimizers, not signs and stubs.
_SIGN_BYTES: Final = 16384


class InstallFirst:
    """What `SIGN` holds.

    Accelerate refuses to load it, since it loads numbers only, and its refusal names this class: so a folder
    of ours that is loaded without `install` ends in an error that says what to call, not in half a state.
    """


class Identity(NamedTuple):
    """What tells that a file was written again."""

    inode: int
    size: int
    modified: int


def identity(path: Path) -> Identity:
    """That of a file."""
    status = path.stat()
    return Identity(status.st_ino, status.st_size, status.st_mtime_ns)


def weights_in(folder: Path) -> dict[Path, Identity]:
    """The files that Accelerate takes for weights; our `SIGN` is one.

    Example:
        >>> weights_in(Path("no such folder"))
        {}
    """
    inside = folder.iterdir() if folder.is_dir() else ()
    return {path: identity(path) for path in inside if _WEIGHTS.fullmatch(path.name)}


def put_sign(folder: Path, *, replace: bool = False) -> None:
    """Writes `SIGN` into a folder of ours, whole or not at all.

    Args:
        folder: that is being saved into.
        replace: whether also where a file of that name is.
    """
    if (folder / SIGN).exists() and not replace:
        return
    content = io.BytesIO()
    torch.save(InstallFirst(), content)
    (folder / _PART).write_bytes(content.getvalue())
    (folder / _PART).replace(folder / SIGN)


def is_sign(path: Path) -> bool:
    """Whether a file is our `SIGN`, and not weights under that name."""
    return _says(path, InstallFirst.__name__)


def is_native(folder: Path) -> bool:
    """Whether the save into a folder that ended last was Accelerate's own: its state is there."""
    optimizer = folder / OPTIMIZER
    if not optimizer.is_file() or _says(optimizer, STUB):
        return False
    return not is_sign(folder / SIGN) or len(weights_in(folder)) > 1


def is_unfinished(folder: Path) -> bool:
    """Whether a save of ours began there and was never committed; so is a folder that is still empty.

    Example:
        >>> is_unfinished(Path("no such folder"))
        False
    """
    if is_checkpoint(folder) or is_native(folder):
        return False
    if (folder / OPTIMIZER).is_file() or is_sign(folder / SIGN):
        return True
    return folder.is_dir() and {path.name for path in folder.iterdir()} <= {_PART}


def stub_in(path: Path) -> dict[str, Any] | None:
    """The stub in a file of Accelerate's; None: another state is there, or nothing."""
    if not _says(path, STUB):
        return None
    try:
        state = torch.load(path, weights_only=True)
    except Exception:  # noqa: BLE001 - an object of the user's, or damaged, which loading it will tell
        return None
    return state if is_stub(state) else None


def of_two_saves(folder: Path) -> str | None:
    """How a checkpoint of ours and what Accelerate has put beside it differ; None: both are of one save.

    A save over the checkpoint before, in the same folder, leaves that where it never comes to its end.
    """
    stub = stub_in(folder / OPTIMIZER)
    try:
        marker = Marker.read(folder)
    except DynaQuantError:  # reading the checkpoint will tell
        return None
    if stub is None or stub.get(SAVE) == marker.note.get(SAVE):
        return None
    return (
        f"in {str(folder)!r} weights and optimizer are of step {marker.step} and the other files of step "
        f"{stub.get('step', 'unknown')}, whose save was never finished"
    )


def newest(folder: str | os.PathLike[str]) -> str | None:
    """The checkpoint below ``folder`` with the highest number that can be resumed from.

    Folders of saves that died are passed over, with a line in the log where one died over a checkpoint of
    before; native checkpoints count like ours.

    Args:
        folder: holds the checkpoints, such as ``project_dir/checkpoints``.

    Returns:
        A path for ``accelerator.load_state``; None where there is no checkpoint.

    Example:
        >>> newest("no such folder") is None
        True
    """
    parent = Path(folder)
    inside = [path for path in parent.iterdir() if path.is_dir()] if parent.is_dir() else []
    whole = [path for path in inside if number_of(path) is not None and _is_whole(path)]
    return str(max(whole, key=lambda path: number_of(path) or 0)) if whole else None


def number_of(folder: Path) -> int | None:
    """The first number in a folder's name, by which Accelerate orders checkpoints.

    Example:
        >>> number_of(Path("checkpoints/checkpoint_12_of_90")), number_of(Path("checkpoints/final"))
        (12, None)
    """
    found = re.search(r"[0-9]+", folder.name)
    return int(found[0]) if found else None


def _says(path: Path, text: str) -> bool:
    small = path.is_file() and path.stat().st_size <= _SIGN_BYTES
    return small and text.encode() in path.read_bytes()


def _is_whole(folder: Path) -> bool:
    if is_checkpoint(folder):
        mixed = of_two_saves(folder)
        if mixed is not None:
            logger.warning("passed over: %s", mixed)
        return mixed is None
    return (folder / _STREAMS).is_file() and not is_unfinished(folder)
