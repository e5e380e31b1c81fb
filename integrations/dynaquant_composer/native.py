"""Leaving and joining: a checkpoint as the file that Composer itself would have written, and back."""

from __future__ import annotations

import os
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

from torch.torch_version import TorchVersion

from dynaquant_composer.pointer import folder_of, is_pointer
from dynaquant_core.errors import StateMismatchError, StorageError, UnsafePathError
from dynaquant_core.plugins import is_checkpoint
from dynaquant_core.plugins.native_files import read_torch, replace_natively, whole_number

__all__ = ["export", "importer"]

#: Who keeps the list of saved checkpoints in Composer's state: ours, and Composer's own.
OURS, THEIRS = "DynaQuantCallback", "CheckpointSaver"


def export(tree: Any, path: str | os.PathLike[str]) -> None:
    """Writes a checkpoint as a native .pt file, with which a Trainer goes on without us.

    Args:
        tree: as `plugins.read_tree` or a store returns it.
        path: of the new file; a file that was there is replaced whole.

    Raises:
        StateMismatchError: it is not what a Composer Trainer saved.
        UnsafePathError: something else than a file is at ``path``, or a checkpoint of ours.
        StorageError: the system refused; a file that was there is as before.
    """
    if not _is_composers(tree):
        raise StateMismatchError(
            "this is not what a Composer Trainer saves (no 'state' with a 'model'); export it with --to pt."
        )
    target = Path(os.path.realpath(path))  # resolve() of Python 3.11 ends a circle of links in a RuntimeError
    if is_pointer(target) and is_checkpoint(folder_of(target)):
        raise UnsafePathError(
            f"{os.fspath(path)!r} stands for the DynaQuant checkpoint in the folder beside it and is not "
            "written over; give another path."
        )
    replace_natively(_with_their_saver(tree), target)


def importer(path: str | os.PathLike[str], *, weights_only: bool = True) -> tuple[int, dict[str, Any]]:
    """Reads a native .pt file.

    Args:
        path: of the file.
        weights_only: refuse objects whose reading could run code, those aside that Composer always writes.

    Returns:
        Completed batches, which are optimizer steps, and the tree to save.

    Raises:
        StorageError: the file cannot be opened.
        UnsupportedStateError: ``weights_only`` refused an object, whose class is named.
        CorruptFileError: it is no file of torch, or damaged.
        StateMismatchError: it is no checkpoint of a Composer Trainer.
    """
    text = os.fspath(path)
    try:
        tree = read_torch(
            Path(text), "a checkpoint of Composer", weights_only=weights_only, harmless=_harmless()
        )
    except OSError as error:
        raise StorageError(f"{text!r} cannot be read: {error.strerror or error}.") from error
    if not _is_composers(tree):
        raise StateMismatchError(f"{text!r} is no checkpoint of a Composer Trainer: it has no 'state'.")
    metadata = tree["state"].get("metadata")
    if isinstance(metadata, dict) and "torch_version" in metadata:
        metadata["torch_version"] = str(metadata["torch_version"])  # a class of torch's own, for a text
    return _batches(tree["state"], text), tree


def _batches(state: Mapping[str, Any], text: str) -> int:
    """Completed ones; 0 where nothing is said of time, as beside weights alone."""
    held: Any = state
    for key in ("timestamp", "Timestamp", "batch"):
        if held is state and key not in held:
            return 0
        held = held.get(key) if isinstance(held, Mapping) else None
    batches = whole_number(held)
    if batches is None:
        raise StateMismatchError(
            f"{text!r} is no checkpoint of a Composer Trainer: expected a whole number of batches in the "
            f"timestamp of its 'state', got {held!r:.80}; take it in without --from composer."
        )
    return batches


def _harmless() -> list[Any]:
    """What Composer puts into every checkpoint beside NumPy's random streams: times, torch's version."""
    return [timedelta, TorchVersion]


def _is_composers(tree: Any) -> bool:
    state = tree.get("state") if isinstance(tree, Mapping) else None
    return isinstance(state, Mapping) and "model" in state


def _with_their_saver(tree: Mapping[str, Any]) -> dict[str, Any]:
    """The tree with the list of checkpoints under the name where Composer's own callback looks for it."""
    state = tree["state"]
    callbacks = state.get("callbacks")
    if not isinstance(callbacks, Mapping) or OURS not in callbacks:
        return dict(tree)
    renamed = {THEIRS if name == OURS else name: value for name, value in callbacks.items()}
    return {**tree, "state": {**state, "callbacks": renamed}}
