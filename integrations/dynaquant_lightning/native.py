"""Leaving and joining: a checkpoint as the file that Lightning itself would have written, and back."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lightning.fabric.plugins import TorchCheckpointIO

from dynaquant_core.errors import StateMismatchError, StorageError
from dynaquant_core.plugins.native_files import read_torch, replace_natively, whole_number
from dynaquant_core.plugins.small_files import guarded
from dynaquant_lightning.paths import local
from dynaquant_lightning.tree import from_tree, is_half

__all__ = ["export", "importer"]


def export(tree: Any, path: str | os.PathLike[str]) -> None:
    """Writes a checkpoint as a native .ckpt file, with which a Trainer goes on without us.

    Args:
        tree: as `read_tree` or a store returns it.
        path: of the new file; a file that was there is replaced whole, missing folders above it are made.

    Raises:
        StateMismatchError: it is not what a Lightning Trainer saved.
        UnsafePathError: something else than a file is at ``path``, or a checkpoint of a store.
        StorageError: the system refused; a file that was there is as before.
    """
    if is_half(tree):
        raise StateMismatchError(
            "what Lightning keeps beside the compressed files is missing; export the checkpoint's "
            "own folder, the one with dynaquant.json."
        )
    checkpoint = from_tree(tree)
    if not isinstance(checkpoint, Mapping) or "state_dict" not in checkpoint:
        raise StateMismatchError(
            "this is not what a Lightning Trainer saves (it has no 'state_dict'); export it with --to pt."
        )
    place = local(path)
    if "://" in place:
        _upload(dict(checkpoint), place)
        return
    target = Path(place)
    with guarded("export to", target):
        target.parent.mkdir(parents=True, exist_ok=True)
    replace_natively(dict(checkpoint), target)


def _upload(checkpoint: dict[str, Any], url: str) -> None:
    """Writes to where Lightning's own file systems lead, and not this disk."""
    try:
        TorchCheckpointIO().save_checkpoint(checkpoint, url)
    except OSError as error:
        raise StorageError(f"{url!r} cannot be written: {error.strerror or error}.") from error


def importer(path: str | os.PathLike[str], *, weights_only: bool = True) -> tuple[int, dict[str, Any]]:
    """Reads a native .ckpt file.

    Args:
        path: of the file.
        weights_only: refuse objects whose reading could run code.

    Returns:
        Completed optimizer steps, and the state to save, into a store or a folder.

    Raises:
        StorageError: the file cannot be opened.
        UnsupportedStateError: ``weights_only`` refused an object, whose class is named.
        CorruptFileError: it is no file of torch, or damaged.
        StateMismatchError: it is no checkpoint of a Lightning Trainer.
    """
    text = os.fspath(path)
    try:
        checkpoint = read_torch(Path(text), "a checkpoint of Lightning", weights_only=weights_only)
    except OSError as error:
        raise StorageError(f"{text!r} cannot be read: {error.strerror or error}.") from error
    held = checkpoint if isinstance(checkpoint, dict) else {}
    steps = whole_number(held.get("global_step"))
    if steps is None or not isinstance(held.get("state_dict"), Mapping):
        raise StateMismatchError(
            f"{text!r} is no checkpoint of a Lightning Trainer: expected tensors by name under 'state_dict' "
            "and steps under 'global_step'; take any other file of torch.save in without --from lightning."
        )
    return steps, held
