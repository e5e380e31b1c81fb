"""Joining: the Trainer's native files as a checkpoint's tree."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file
from transformers.trainer import OPTIMIZER_NAME, TRAINER_STATE_NAME

from dynaquant_core.errors import CorruptFileError, NotAStoreError
from dynaquant_transformers.native import (
    ADAPTER_WEIGHTS,
    DEFAULT,
    WEIGHTS,
    is_ours,
    load_json,
    load_torch,
    told,
)
from dynaquant_transformers.session import OPTIMIZER
from dynaquant_transformers.weights import ADAPTERS, MODEL

__all__ = ["importer"]


def importer(path: str | Path) -> tuple[int, dict[str, Any]]:
    """Reads a native checkpoint, or a model that ``save_pretrained`` wrote; nothing in it is executed.

    The Trainer resumes from native checkpoints by itself, with the callback as without; this is for stores.

    Args:
        path: a folder ``checkpoint-N`` that the Trainer wrote, or a model's.

    Returns:
        Completed optimizer steps, 0 where no ``trainer_state.json`` tells them, and the tree that a
        checkpoint of ours would hold.

    Raises:
        NotAStoreError: it holds no weights of the Trainer, or is a checkpoint of ours.
        CorruptFileError, StorageError: a file of it cannot be read.
    """
    source = Path(path)
    if is_ours(source):
        raise NotAStoreError(f"{str(source)!r} is a DynaQuant checkpoint already; use it as it is.")
    tree = _native_weights(source)
    if (source / OPTIMIZER_NAME).is_file():
        tree[OPTIMIZER] = load_torch(source / OPTIMIZER_NAME)
    return _step_of(source), tree


def _native_weights(source: Path) -> dict[str, Any]:
    for name in WEIGHTS:
        if (source / name).is_file():
            return {MODEL: _load_weights(source / name)}
    adapters = {}
    for file in sorted(
        file for name in ADAPTER_WEIGHTS for file in (*source.glob(name), *source.glob(f"*/{name}"))
    ):
        adapters[DEFAULT if file.parent == source else file.parent.name] = _load_weights(file)
    if not adapters:
        expected = ", ".join((*WEIGHTS, *ADAPTER_WEIGHTS))
        raise NotAStoreError(f"{str(source)!r} holds no weights of the Trainer; expected one of {expected}.")
    return {ADAPTERS: adapters}


def _load_weights(path: Path) -> dict[str, Any]:
    if path.name.endswith(".index.json"):
        shards = sorted(set(load_json(path)["weight_map"].values()))
        return {
            name: value for shard in shards for name, value in _load_weights(path.with_name(shard)).items()
        }
    if path.suffix != ".safetensors":
        return dict(load_torch(path))
    try:
        with told("read", path):
            return dict(load_file(path))
    except SafetensorError as error:
        raise CorruptFileError(f"{str(path)!r} is not a whole safetensors file ({error}).") from error


def _step_of(source: Path) -> int:
    """The optimizer steps that the Trainer's state tells; 0 without one: a model's folder has none."""
    if not (source / TRAINER_STATE_NAME).exists():
        return 0
    step = load_json(source / TRAINER_STATE_NAME).get("global_step")
    if not isinstance(step, int):
        raise CorruptFileError(f"{str(source / TRAINER_STATE_NAME)!r} tells no global_step.")
    return step
