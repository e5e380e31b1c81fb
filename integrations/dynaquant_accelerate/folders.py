"""Which checkpoint folder is whole, which is left from a save that died, and which is the newest."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Final

import torch

from dynaquant_core.plugins import is_checkpoint

__all__ = ["SIGN", "InstallFirst", "is_unfinished", "newest", "number_of", "put_sign"]

#: Stands where Accelerate looks for weights; not one of ours reads it.
SIGN: Final = "pytorch_model.bin"

#: Names under which Accelerate writes the weights of each model.
_WEIGHTS: Final = re.compile(r"model(_\d+)?\.safetensors|pytorch_model(_\d+)?\.bin")

#: Where Accelerate keeps random streams, the last of its files that every checkpoint has.
_STREAMS: Final = "random_states_0.pkl"

#: Larger files are weights, not signs.
_SIGN_BYTES: Final = 16384


class InstallFirst:
    """What `SIGN` holds.

    Accelerate refuses to load it, since it loads numbers only, and its refusal names this class: so a folder
    of ours that is loaded without `install` ends in an error that says what to call, not in half a state.
    """


def put_sign(folder: Path) -> None:
    """Writes `SIGN` into a folder of ours; native weights of an earlier save there would pass for ours."""
    for path in folder.iterdir():
        if _WEIGHTS.fullmatch(path.name):
            path.unlink()
    torch.save(InstallFirst(), folder / SIGN)


def is_unfinished(folder: Path) -> bool:
    """Whether a save of ours began there and was never committed.

    Example:
        >>> is_unfinished(Path("no such folder"))
        False
    """
    sign = folder / SIGN
    if is_checkpoint(folder) or not sign.is_file() or sign.stat().st_size > _SIGN_BYTES:
        return False
    return InstallFirst.__name__.encode() in sign.read_bytes()


def newest(folder: str | os.PathLike[str]) -> str | None:
    """The checkpoint below ``folder`` with the highest number that can be resumed from.

    Folders of saves that died are passed over; native checkpoints count like ours.

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


def _is_whole(folder: Path) -> bool:
    if is_checkpoint(folder):
        return True
    return (folder / _STREAMS).is_file() and not is_unfinished(folder)
