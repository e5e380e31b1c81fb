"""What the Trainer's saving methods do where there is a `DynaQuantCallback`.

Each function stands in for the method of its name: it gets the trainer, the method itself, and its arguments.
Everything else is the Trainer's own business and stays native.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import torch
from transformers import Trainer
from transformers.trainer import SCHEDULER_NAME
from transformers.utils import ADAPTER_SAFE_WEIGHTS_NAME, SAFE_WEIGHTS_INDEX_NAME, SAFE_WEIGHTS_NAME

from dynaquant_transformers.callback import session_of
from dynaquant_transformers.weights import hollow

__all__ = ["SIGNPOST", "save_files", "save_optimizer_and_scheduler"]

Method = Callable[..., Any]

#: Who looks for native weights is told, by the name of a file that is not there, what to do.  It has no "/",
#: and fewer characters than a file's name may have.
SIGNPOST: Final = (
    "import dynaquant_transformers (of DynaQuant) and the Trainer reads this "
    "checkpoint, for from_pretrained run dynaquant export CHECKPOINT --to hf -o FOLDER and load FOLDER"
)


def save_files(trainer: Trainer, native: Method, output_dir: Any = None, state_dict: Any = None) -> None:
    """``_save``: configuration, tokenizer and arguments; in a checkpoint without weights."""
    session = session_of(trainer)
    if session is None or not session.is_making(output_dir):
        native(output_dir, state_dict)
        return
    empty = hollow(trainer.model)
    native(output_dir, empty)
    if not trainer.args.should_save:
        return
    folder = Path(output_dir)
    for name in (SAFE_WEIGHTS_NAME, ADAPTER_SAFE_WEIGHTS_NAME):
        for file in list(folder.rglob(name)):
            file.unlink()
    if not empty:
        _put_signpost(folder)


def save_optimizer_and_scheduler(trainer: Trainer, native: Method, output_dir: Any) -> None:
    """``_save_optimizer_and_scheduler``: in a checkpoint the scheduler only."""
    session = session_of(trainer)
    if session is None or not session.is_making(output_dir):
        native(output_dir)
    elif trainer.args.should_save:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of torch, about an optimizer that is not saved beside it
            torch.save(trainer.lr_scheduler.state_dict(), Path(output_dir) / SCHEDULER_NAME)


def _put_signpost(folder: Path) -> None:
    index = {"metadata": {"note": SIGNPOST}, "weight_map": {"": f"{SIGNPOST}.safetensors"}}
    (folder / SAFE_WEIGHTS_INDEX_NAME).write_text(json.dumps(index, indent=1) + "\n", encoding="utf-8")
