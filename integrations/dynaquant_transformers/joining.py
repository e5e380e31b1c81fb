"""Joining: the Trainer's native files as a checkpoint's tree."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file
from transformers.trainer import OPTIMIZER_NAME, TRAINER_STATE_NAME

from dynaquant_core.errors import CorruptFileError, NotAStoreError
from dynaquant_core.plugins.native_files import read_torch
from dynaquant_transformers.native import (
    ADAPTER_WEIGHTS,
    DEFAULT,
    WEIGHTS,
    is_ours,
    load_json,
    told,
)
from dynaquant_transformers.weights import ADAPTERS, MODEL, OPTIMIZER

__all__ = ["importer"]


def importer(path: str | Path, *, weights_only: bool = True) -> tuple[int, dict[str, Any]]:
    """Reads a native checkpoint, or a model that ``save_pretrained`` wrote.

    The Trainer resumes from native checkpoints by itself, with the callback as without; this is for stores.

    Args:
        path: a folder ``checkpoint-N`` that the Trainer wrote, or a model's.
        weights_only: refuse objects whose reading could run code.

    Returns:
        Completed optimizer steps, 0 where no ``trainer_state.json`` tells them, and the tree that a
        checkpoint of ours would hold.

    Raises:
        NotAStoreError: it holds no weights of the Trainer, or is a checkpoint of ours.
        UnsupportedStateError: ``weights_only`` refused an object, whose class is named.
        CorruptFileError, StorageError: a file of it cannot be read, or lacks tensors that its index names.
    """
    source = Path(path)
    if is_ours(source):
        raise NotAStoreError(f"{str(source)!r} is a DynaQuant checkpoint already; use it as it is.")
    tree = _native_weights(source, weights_only)
    if (source / OPTIMIZER_NAME).is_file():
        tree[OPTIMIZER] = _torch_file(source / OPTIMIZER_NAME, weights_only)
    return _step_of(source), tree


def _native_weights(source: Path, weights_only: bool) -> dict[str, Any]:
    for name in WEIGHTS:
        if (source / name).is_file():
            read = _parts if name.endswith(".index.json") else _weights
            return {MODEL: read(source / name, weights_only)}
    adapters = {}
    for file in sorted(
        file for name in ADAPTER_WEIGHTS for file in (*source.glob(name), *source.glob(f"*/{name}"))
    ):
        adapters[DEFAULT if file.parent == source else file.parent.name] = _weights(file, weights_only)
    if not adapters:
        expected = ", ".join((*WEIGHTS, *ADAPTER_WEIGHTS))
        raise NotAStoreError(f"{str(source)!r} holds no weights of the Trainer; expected one of {expected}.")
    return {ADAPTERS: adapters}


def _parts(index: Path, weights_only: bool) -> dict[str, Any]:
    """The tensors of all files of an index; those that it names from where it says that they are."""
    said = load_json(index)
    places = said.get("weight_map") if isinstance(said, dict) else None
    if not isinstance(places, dict) or not places or not all(map(_is_part, places.values())):
        raise CorruptFileError(
            f"{str(index)!r} is no index of a model in parts: expected a 'weight_map' that gives each tensor "
            "a .safetensors or .bin file in the same folder; copy the folder again."
        )
    parts = {name: _weights(index.with_name(name), weights_only) for name in sorted(set(places.values()))}
    lost = [name for name, part in places.items() if name not in parts[part]]
    if lost:
        raise CorruptFileError(
            f"{str(index)!r} and the files that it names are not of one model: {len(lost)} of its tensors "
            f"are missing there, as {lost[0]!r} in {places[lost[0]]}; copy the folder again."
        )
    everything = {name: value for part in parts.values() for name, value in part.items()}
    return everything | {name: parts[part][name] for name, part in places.items()}


def _is_part(name: Any) -> bool:
    """Whether this names a file of weights beside the index."""
    return isinstance(name, str) and Path(name).name == name and Path(name).suffix in (".safetensors", ".bin")


def _weights(path: Path, weights_only: bool) -> dict[str, Any]:
    if path.suffix != ".safetensors":
        found = _torch_file(path, weights_only)
        if not isinstance(found, Mapping):
            raise CorruptFileError(
                f"{str(path)!r} holds no weights: expected tensors by name, found a {type(found).__name__}; "
                "check the path."
            )
        return dict(found)
    try:
        with told("read", path):
            return dict(load_file(path))
    except SafetensorError as error:
        raise CorruptFileError(f"{str(path)!r} is not a whole safetensors file ({error}).") from error


def _torch_file(path: Path, weights_only: bool) -> Any:
    with told("read", path):
        return read_torch(path, "a file of torch.save", weights_only=weights_only)


def _step_of(source: Path) -> int:
    """The optimizer steps that the Trainer's state tells; 0 without one: a model's folder has none."""
    if not (source / TRAINER_STATE_NAME).exists():
        return 0
    state = load_json(source / TRAINER_STATE_NAME)
    step = state.get("global_step") if isinstance(state, dict) else None
    if type(step) is not int:
        raise CorruptFileError(f"{str(source / TRAINER_STATE_NAME)!r} tells no global_step.")
    return step
