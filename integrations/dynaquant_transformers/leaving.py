"""Leaving: a checkpoint as the Trainer's native files."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from transformers.trainer import OPTIMIZER_NAME
from transformers.utils import ADAPTER_SAFE_WEIGHTS_NAME, SAFE_WEIGHTS_NAME

from dynaquant_core.errors import StateMismatchError
from dynaquant_core.store.export import write_natively, write_tensors
from dynaquant_core.store.new_folder import copy_files, new_folder
from dynaquant_transformers.native import DEFAULT, STATE_FILES
from dynaquant_transformers.session import OPTIMIZER
from dynaquant_transformers.weights import ADAPTERS, MODEL

__all__ = ["export"]

logger = logging.getLogger(__name__)


def export(tree: Any, path: str | Path, source: str | Path | None = None) -> None:
    """Writes a checkpoint as the folder that the Trainer would have written without this package.

    Args:
        tree: as `dynaquant_core.plugins.read_tree` gives it.
        path: the new folder; nothing may be there, or an empty folder.
            ``train(resume_from_checkpoint=path)`` and ``from_pretrained(path)`` take it.
        source: the checkpoint's folder, whose configuration, tokenizer, scheduler and state are copied; None:
            only weights and optimizer are written.

    Raises:
        StateMismatchError: the tree is not a checkpoint of the Trainer.
        UnsafePathError: something is at ``path``.
        StorageError: the system refused; nothing is at ``path``.
    """
    if not isinstance(tree, Mapping) or not {MODEL, ADAPTERS} & set(tree):
        raise StateMismatchError(
            f"not a checkpoint of the Trainer: it has neither {MODEL!r} nor {ADAPTERS!r}."
        )
    target, folder = Path(path), None if source is None else Path(source)
    with new_folder("export to", target) as fresh:
        if MODEL in tree:
            _save_weights(tree[MODEL], fresh / SAFE_WEIGHTS_NAME)
        for name, weights in tree.get(ADAPTERS, {}).items():
            inside = fresh if name == DEFAULT else fresh / name
            _save_weights(weights, inside / ADAPTER_SAFE_WEIGHTS_NAME)
        if OPTIMIZER in tree:
            with (fresh / OPTIMIZER_NAME).open("wb") as file:
                write_natively(tree[OPTIMIZER], file)
        if folder is not None:
            copy_files(folder, fresh, lambda beside: bool(STATE_FILES.fullmatch(beside.name)))
    if folder is None:
        logger.warning("%s holds weights and optimizer only; copy the checkpoint's other files there", target)


def _save_weights(weights: Mapping[str, torch.Tensor], path: Path) -> None:
    """Writes a safetensors file; a tied tensor once, under its first name, as the format has no others."""
    first: dict[int, str] = {}
    for name, tensor in weights.items():
        first.setdefault(tensor.untyped_storage().data_ptr() if tensor.numel() else id(tensor), name)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_tensors({name: weights[name].contiguous() for name in first.values()}, path)
