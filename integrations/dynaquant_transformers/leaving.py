"""Leaving: a checkpoint as the Trainer's native files."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from transformers.trainer import OPTIMIZER_NAME, TRAINER_STATE_NAME
from transformers.utils import ADAPTER_SAFE_WEIGHTS_NAME, SAFE_WEIGHTS_NAME

from dynaquant_core.errors import StateMismatchError
from dynaquant_transformers.native import DEFAULT, STATE_FILES, told
from dynaquant_transformers.session import OPTIMIZER
from dynaquant_transformers.weights import ADAPTERS, MODEL

__all__ = ["export"]

logger = logging.getLogger(__name__)


def export(tree: Any, path: str | Path, source: str | Path | None = None) -> None:
    """Writes a checkpoint as the folder that the Trainer would have written without this package.

    Args:
        tree: as `dynaquant_core.plugins.read_tree` gives it.
        path: the new folder; ``train(resume_from_checkpoint=path)`` and ``from_pretrained(path)`` take it.
        source: the checkpoint's folder, whose configuration, tokenizer, scheduler and state are copied; None:
            only weights and optimizer are written.

    Raises:
        StateMismatchError: the tree is not a checkpoint of the Trainer.
        StorageError: the system refused.
    """
    target = Path(path)
    if not isinstance(tree, Mapping) or not {MODEL, ADAPTERS} & set(tree):
        raise StateMismatchError(
            f"not a checkpoint of the Trainer: it has neither {MODEL!r} nor {ADAPTERS!r}."
        )
    if MODEL in tree:
        _save_weights(tree[MODEL], target / SAFE_WEIGHTS_NAME)
    for name, weights in tree.get(ADAPTERS, {}).items():
        folder = target if name == DEFAULT else target / name
        _save_weights(weights, folder / ADAPTER_SAFE_WEIGHTS_NAME)
    if OPTIMIZER in tree:
        with _writing(target / OPTIMIZER_NAME) as file:
            torch.save(tree[OPTIMIZER], file)
    if source is None:
        logger.warning("%s holds weights and optimizer only; copy the checkpoint's other files there", target)
    else:
        _copy_others(Path(source), target)


def _save_weights(weights: Mapping[str, torch.Tensor], path: Path) -> None:
    """Writes a safetensors file; a tied tensor once, under its first name, as the format has no others."""
    first: dict[int, str] = {}
    for name, tensor in weights.items():
        first.setdefault(tensor.untyped_storage().data_ptr() if tensor.numel() else id(tensor), name)
    whole = {name: weights[name].contiguous() for name in first.values()}
    with _writing(path) as file:
        save_file(whole, file, metadata={"format": "pt"})


@contextmanager
def _writing(path: Path) -> Iterator[Path]:
    """A file to write that takes the name ``path`` when it is whole."""
    with told("write", path):
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f"{path.name}.tmp")
        yield temporary
        temporary.replace(path)


def _copy_others(source: Path, target: Path) -> None:
    """Copies what is neither weights nor optimizer nor ours; the Trainer's state last, as it does."""
    files = [file for file in source.rglob("*") if file.is_file() and not STATE_FILES.fullmatch(file.name)]
    for file in sorted(files, key=lambda file: (file.name == TRAINER_STATE_NAME, file)):
        with _writing(target / file.relative_to(source)) as copy:
            shutil.copyfile(file, copy)
