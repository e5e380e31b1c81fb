"""A framework's checkpoint as the tree that is compressed, and back."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dynaquant_core.plugins.marker import Marker
from dynaquant_lightning.paths import local

__all__ = [
    "LAST",
    "from_tree",
    "has_moments",
    "homes_of",
    "is_half",
    "kind_in",
    "kind_note",
    "to_tree",
]

#: In the note of a folder that was linked as a ModelCheckpoint's last: its name.  A folder that a user
#: copied or renamed is nobody's last, and nobody's to remove.
LAST = "last"

#: In the note of every folder: whether `has_moments` held of what was saved.
KIND = "kind"
WITH, WITHOUT = "with optimizer", "without optimizer"

#: Where a Trainer keeps the model and its optimizers, and what it writes into all of its checkpoints.
HOMES = ("state_dict", "optimizer_states")
TRAINERS = frozenset({"state_dict", "pytorch-lightning_version"})

#: How deep a checkpoint is searched for an optimizer's state.
DEPTH = 8

#: The name under which a checkpoint was saved; a second name for it is a copy of its folder.
SAVED_AS = "dynaquant_saved_as"

#: A tree cannot hold this key: what lies under it is kept beside the compressed files, with everything else
#: that they cannot hold, and is missing where that was not read.
BESIDE = None


def to_tree(checkpoint: Mapping[str, Any], path: str) -> dict[str, Any]:
    """The checkpoint, and where it is saved.

    Args:
        checkpoint: what the framework hands out; its tensors are not copied.
        path: where it is saved, as the framework spells it.

    Example:
        >>> to_tree({"epoch": 3}, "a.ckpt")
        {'epoch': 3, 'dynaquant_saved_as': {None: 'a.ckpt'}}
    """
    return {**checkpoint, SAVED_AS: {BESIDE: path}}


def homes_of(checkpoint: Mapping[str, Any]) -> tuple[str, ...]:
    """Where the weights and moments of a Trainer's checkpoint lie; of Fabric's, which users make, anywhere.

    Example:
        >>> homes_of({"epoch": 3})
        ()
    """
    return HOMES if set(checkpoint) >= TRAINERS else ()


def is_half(tree: Any) -> bool:
    """Whether ``tree`` is of the compressed files alone, without what was kept beside them.

    Example:
        >>> is_half({"epoch": 3, "dynaquant_saved_as": None})
        True
    """
    return isinstance(tree, Mapping) and tree.get(SAVED_AS, {}) is None


def from_tree(tree: Any, path: Path | None = None) -> Any:
    """What `to_tree` was given.

    Args:
        tree: as loaded, not half of it; other trees are returned as they are.
        path: the folder it was loaded from, where that is known: a ModelCheckpoint's "last" may be a copy of
            one of its best, and its state then says so.
    """
    if not isinstance(tree, Mapping) or SAVED_AS not in tree:
        return tree
    checkpoint = {key: value for key, value in tree.items() if key != SAVED_AS}
    saved_as = tree[SAVED_AS][BESIDE]
    if path is not None and Marker.read(path).note.get(LAST) == path.name:
        for state in _mappings(checkpoint.get("callbacks")):
            _call_last(state, path, saved_as)
    return checkpoint


def has_moments(checkpoint: Any, depth: int = DEPTH) -> bool:
    """Whether an optimizer's state is in it: with and without are two kinds that share no base.

    Example:
        >>> has_moments({"optimizers": {"main": {"state": {0: {"prev": 1.0}}, "param_groups": []}}})
        True
    """
    if not isinstance(checkpoint, (Mapping, list, tuple)) or depth == 0:
        return False
    if isinstance(checkpoint, Mapping) and isinstance(checkpoint.get("param_groups"), (list, tuple)):
        return bool(checkpoint.get("state"))
    values = checkpoint.values() if isinstance(checkpoint, Mapping) else checkpoint
    return any(has_moments(value, depth - 1) for value in values)


def kind_note(checkpoint: Mapping[str, Any]) -> dict[str, str]:
    """What the note of a folder says of its kind: a tensor's name need not tell that it is an optimizer's."""
    return {KIND: WITH if has_moments(checkpoint) else WITHOUT}


def kind_in(note: Mapping[str, str]) -> bool | None:
    """What `has_moments` said of the checkpoint with this note; None: the note does not tell.

    Example:
        >>> kind_in(kind_note({"epoch": 3})), kind_in({})
        (False, None)
    """
    return None if KIND not in note else note[KIND] == WITH


def _mappings(states: Any) -> list[dict[str, Any]]:
    values = states.values() if isinstance(states, Mapping) else ()
    return [state for state in values if isinstance(state, dict)]


def _call_last(state: dict[str, Any], path: Path, saved_as: str) -> None:
    """Tells a ModelCheckpoint that ``path`` is its last: it was linked from one that it lists as best."""
    best = {state.get("best_model_path"), *(state.get("best_k_models") or ())}
    folder = state.get("dirpath")
    if (
        folder
        and saved_as in map(local, filter(None, best))
        and os.path.realpath(folder) == os.path.realpath(path.parent)
    ):
        state["last_model_path"] = os.path.join(folder, path.name)  # noqa: PTH118 - text, as its owner writes it
