"""Leaving: a checkpoint as the Trainer's native files."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from transformers.trainer import OPTIMIZER_NAME
from transformers.utils import ADAPTER_SAFE_WEIGHTS_NAME, SAFE_WEIGHTS_NAME

from dynaquant_core.errors import NotAStoreError, StateMismatchError
from dynaquant_core.plugins import is_checkpoint
from dynaquant_core.plugins.marker import Marker
from dynaquant_core.plugins.native_files import write_natively, write_tensors
from dynaquant_core.plugins.new_folder import copy_files, new_folder
from dynaquant_transformers.native import DEFAULT, is_ours, is_state
from dynaquant_transformers.support import FRAMEWORK
from dynaquant_transformers.weights import ADAPTERS, MODEL, OPTIMIZER

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

    Without ``source`` an optimizer whose parameters have names, as a `Checkpointer` stores it, is left out,
    which the log says: the Trainer's goes by numbers.

    Raises:
        NotAStoreError: the Trainer has saved natively into ``source`` since.
        StateMismatchError: the tree is not a checkpoint of the Trainer.
        UnsafePathError: something is at ``path``.
        StorageError: the system refused; nothing is at ``path``.
    """
    target, folder = Path(path), None if source is None else Path(source)
    if folder is not None:
        _require_trainers(folder)
    _require_weights(tree)
    adapters = tree.get(ADAPTERS, {})
    optimizer = tree.get(OPTIMIZER) if folder is not None else _numbered(tree.get(OPTIMIZER), target)
    with new_folder("export to", target) as fresh:
        if MODEL in tree:
            _save_weights(tree[MODEL], fresh / SAFE_WEIGHTS_NAME)
        for name, weights in adapters.items():
            inside = fresh if name == DEFAULT else fresh / name
            _save_weights(weights, inside / ADAPTER_SAFE_WEIGHTS_NAME)
        if optimizer is not None:
            with (fresh / OPTIMIZER_NAME).open("wb") as file:
                write_natively(optimizer, file)
        if folder is not None:
            copy_files(folder, fresh, lambda beside: is_state(beside, folder, adapters))
    if folder is None:
        held = "weights" if optimizer is None else "weights and optimizer"
        logger.warning("%s holds %s only; copy the checkpoint's other files there", target, held)


def _require_trainers(source: Path) -> None:
    """Refuses another framework's folder, and one whose files are not those of the tree any more."""
    if not is_checkpoint(source):
        return
    framework = Marker.read(source).framework
    if framework != FRAMEWORK:
        raise StateMismatchError(
            f"{str(source)!r} is a checkpoint of {framework}, not of the Trainer; export it for {framework}, "
            "or with --to pt or --to safetensors."
        )
    if not is_ours(source):
        raise NotAStoreError(
            f"the Trainer has saved natively into {str(source)!r} since the DynaQuant checkpoint there: use "
            "the folder as it is, or export the newest .dq file in it."
        )


def _require_weights(tree: Any) -> None:
    if not isinstance(tree, Mapping) or not {MODEL, ADAPTERS} & set(tree):
        raise StateMismatchError(
            f"not a checkpoint of the Trainer: it has neither {MODEL!r} nor {ADAPTERS!r}."
        )
    for weights in (tree.get(MODEL, {}), *tree.get(ADAPTERS, {}).values()):
        if not isinstance(weights, Mapping) or not all(map(torch.is_tensor, weights.values())):
            raise StateMismatchError(
                f"not a checkpoint of the Trainer: expected tensors by name under {MODEL!r}, found other "
                "values or several models; export it with --to pt or --to safetensors."
            )


def _numbered(optimizer: Any, target: Path) -> Any:
    """The optimizer's state, if it is one that the Trainer could load; None where it goes by names."""
    if optimizer is None:
        return None
    if not isinstance(optimizer, Mapping):
        raise StateMismatchError(
            f"not a checkpoint of the Trainer: expected the state of one optimizer under {OPTIMIZER!r}, "
            f"found {type(optimizer).__name__}; export it with --to pt or --to safetensors."
        )
    groups = optimizer.get("param_groups", ())
    if groups and all(type(number) is int for group in groups for number in group["params"]):
        return optimizer
    logger.warning("%s gets no optimizer: the Trainer's goes by numbers, and this one does not", target)
    return None


def _save_weights(weights: Mapping[str, torch.Tensor], path: Path) -> None:
    """Writes a safetensors file; a tied tensor once, under its first name, as the format has no others."""
    first: dict[int, str] = {}
    for name, tensor in weights.items():
        first.setdefault(tensor.untyped_storage().data_ptr() if tensor.numel() else id(tensor), name)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_tensors({name: weights[name].contiguous() for name in first.values()}, path)
