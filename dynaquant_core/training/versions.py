"""What a model's ``state_dict`` says of its modules beside tensors: the version of the class of each.

Torch keeps it in an attribute of the dictionary, ``_metadata``: path of a module -> ``{"version": ...}``.  A
module migrates what an older version of its class wrote, and takes what comes without a version for the
oldest, so weights that are given back without it would be migrated again at every restore.

A checkpoint holds what differs from what is assumed of every module: version 1, that of `nn.Module`, and 2
of one that counts batches (torch's normalisations).  So for most models it holds nothing.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Container, Iterable, Mapping
from typing import Any

from torch import nn

from dynaquant_core.errors import UnsupportedStateError
from dynaquant_core.state import pack
from dynaquant_core.training.names import canonical_keys, canonical_name

__all__ = ["as_state_dict", "versions_of"]

VERSION = "version"

#: What activation checkpointing puts into the path of a module and not into the names of its tensors.
CHECKPOINTED = "_checkpoint_wrapped_module"


def versions_of(model: nn.Module, state: Any, *, canonical: bool = True) -> dict[str, Any]:
    """What a model's state dictionary says of its modules and a reader would not assume.

    Args:
        model: wrapped or not.
        state: its ``state_dict()``.
        canonical: whether its names are stored without wrappers' prefixes; else as they are.

    Returns:
        Canonical path of a module ("" is the model) -> its version, or all that is said of it where that is
        more.  Objects that a checkpoint cannot hold are left out.

    Example:
        >>> class Second(nn.Linear):
        ...     _version = 2
        >>> model = nn.Sequential(Second(2, 2), nn.BatchNorm1d(2))
        >>> versions_of(model, model.state_dict())
        {'0': 2}
    """
    metadata = getattr(state, "_metadata", None)
    if not isinstance(metadata, Mapping):
        return {}
    names = {canonical_name(model, key) for key in state} if canonical else set(state)
    found: dict[str, Any] = {}
    for path, said in (_by_path(model, metadata) if canonical else metadata).items():
        held = {word: value for word, value in said.items() if _can_be_held(value)}
        if held != {VERSION: _assumed(path, names)}:
            found[path] = held[VERSION] if set(held) == {VERSION} else held
    return found


def as_state_dict(
    model: nn.Module, stored: Mapping[str, Any], versions: Any, *, canonical: bool = True
) -> dict[str, Any]:
    """A stored state as the model's own ``load_state_dict`` takes it, with what was said of its modules.

    Args:
        model: the one that will load it, wrapped or not.
        stored: tensors by canonical name, those of the model; a module may make others as it loads.
        canonical: as they were stored; else the names are as they are.
        versions: what `versions_of` gave when they were saved.  Anything but a mapping: the checkpoint is
            from before it was stored, and each module is taken to have had the version that it has now.

    Returns:
        An ordered dictionary with ``_metadata``; without, if the model's own has none.

    Example:
        >>> model = nn.Linear(2, 2)
        >>> dict(as_state_dict(model, model.state_dict(), {"": 3})._metadata)
        {'': {'version': 3}}
    """
    keys = _keys(model, stored) if canonical else {name: name for name in stored}
    state = OrderedDict((keys[name], value) for name, value in stored.items())
    metadata = getattr(model.state_dict(), "_metadata", None)
    if metadata is None:
        return state
    if isinstance(versions, Mapping):
        for path, said in (_by_path(model, metadata) if canonical else metadata).items():
            was = versions.get(path, _assumed(path, stored))
            said.update(was if isinstance(was, Mapping) else {VERSION: was})
    state._metadata = metadata  # type: ignore[attr-defined]
    return state


def _keys(model: nn.Module, names: Iterable[str]) -> dict[str, str]:
    """The model's own key of each canonical name; of one that it lacks, below the module of the same path."""
    keys = canonical_keys(model)
    lacking = [name for name in names if name not in keys]
    if lacking:
        modules = {canonical_name(model, path): path for path, _ in model.named_modules() if path}
        paths = {canonical: _as_in_names(path) for canonical, path in ({"": ""} | modules).items()}
        for name in lacking:
            parts = name.split(".")
            at = next(at for at in range(len(parts) - 1, -1, -1) if ".".join(parts[:at]) in paths)
            path = paths[".".join(parts[:at])]
            keys[name] = ".".join([path, *parts[at:]] if path else parts[at:])
    return keys


def _as_in_names(path: str) -> str:
    return ".".join(part for part in path.split(".") if part != CHECKPOINTED)


def _by_path(model: nn.Module, metadata: Mapping[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """What is said of each module, by canonical path: of what is wrapped, since a wrapper goes before it."""
    return {canonical_name(model, key): said for key, said in metadata.items()}


def _assumed(path: str, names: Container[str]) -> int:
    """The version of a module of which nothing is stored; ``names`` are canonical ones of all tensors."""
    counter = f"{path}.num_batches_tracked" if path else "num_batches_tracked"
    return 2 if counter in names else 1


def _can_be_held(value: Any) -> bool:
    try:
        pack(value)
    except UnsupportedStateError:
        return False
    return True
