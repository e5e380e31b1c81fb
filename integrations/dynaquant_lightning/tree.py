"""A framework's checkpoint as the tree that is compressed, and back.

A delta needs the same tensors as its base.  What a checkpoint holds besides weights and moments changes
from one to the next (the best k paths with their scores, a sampler's position), so it is put where plugins
keep what a tree cannot hold: beside it, as the framework itself would write it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

__all__ = ["from_tree", "has_moments", "to_tree"]

#: The name under which a checkpoint was saved; a second name for it is a copy of its folder.
SAVED_AS = "dynaquant_saved_as"

SCALARS = (str, int, float, bool, type(None))


def to_tree(checkpoint: Mapping[str, Any], path: str) -> dict[str, Any]:
    """The checkpoint with everything that is neither a number nor a state with matrices set apart.

    Args:
        checkpoint: what the framework hands out; its tensors are not copied.
        path: where it is saved, as the framework spells it.

    Example:
        >>> to_tree({"epoch": 3, "callbacks": {"best": [1.5]}}, "a.ckpt")
        {'epoch': 3, 'callbacks': {None: {'best': [1.5]}}, 'dynaquant_saved_as': 'a.ckpt'}
    """
    tree = {key: value if _stays(value) else {None: value} for key, value in checkpoint.items()}
    return {**tree, SAVED_AS: path}


def from_tree(tree: Any, path: Path | None = None) -> Any:
    """What `to_tree` was given.

    Args:
        tree: as loaded; other trees are returned as they are.
        path: the folder it was loaded from, where that is known: a ModelCheckpoint's "last" may be a copy of
            one of its best, and its state then says so.
    """
    if not isinstance(tree, Mapping) or SAVED_AS not in tree:
        return tree
    checkpoint = {key: _together(value) for key, value in tree.items() if key != SAVED_AS}
    if path is not None and path.name != Path(tree[SAVED_AS]).name:
        for state in _mappings(checkpoint.get("callbacks")):
            _call_last(state, path, tree[SAVED_AS])
    return checkpoint


def has_moments(checkpoint: Mapping[str, Any]) -> bool:
    """Whether an optimizer's state is in it: with and without are two kinds that share no base."""
    return any(state.get("state") for value in checkpoint.values() for state in _optimizers(value))


def _optimizers(value: Any) -> list[Mapping[str, Any]]:
    candidates = value if isinstance(value, (list, tuple)) else [value]
    return [one for one in candidates if isinstance(one, Mapping) and "param_groups" in one]


def _stays(value: Any) -> bool:
    """Numbers, texts, and whatever holds a matrix or an optimizer's state."""
    return isinstance(value, SCALARS) or _holds_matrix(value)


def _holds_matrix(value: Any) -> bool:
    if isinstance(value, Tensor):
        return value.is_floating_point() and value.dim() > 1
    if isinstance(value, Mapping):
        return "param_groups" in value or any(map(_holds_matrix, value.values()))
    return isinstance(value, (list, tuple)) and any(map(_holds_matrix, value))


def _together(value: Any) -> Any:
    return value[None] if isinstance(value, dict) and list(value) == [None] else value


def _mappings(states: Any) -> list[dict[str, Any]]:
    values = states.values() if isinstance(states, Mapping) else ()
    return [state for state in values if isinstance(state, dict)]


def _call_last(state: dict[str, Any], path: Path, saved_as: str) -> None:
    """Tells a ModelCheckpoint that ``path`` is its last: it was linked from one that it lists as best."""
    best = {state.get("best_model_path"), *(state.get("best_k_models") or ())}
    folder = state.get("dirpath")
    if folder and saved_as in best and os.path.realpath(folder) == os.path.realpath(path.parent):
        state["last_model_path"] = os.path.join(folder, path.name)  # noqa: PTH118 - text, as its owner writes it
