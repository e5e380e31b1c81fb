"""The Trainer's native files: names, whether a folder holds them, what the system says of them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import torch
from transformers.trainer import OPTIMIZER_NAME, SCHEDULER_NAME, TRAINER_STATE_NAME
from transformers.utils import (
    ADAPTER_SAFE_WEIGHTS_NAME,
    ADAPTER_WEIGHTS_NAME,
    SAFE_WEIGHTS_INDEX_NAME,
    SAFE_WEIGHTS_NAME,
    WEIGHTS_INDEX_NAME,
    WEIGHTS_NAME,
)

from dynaquant_core.errors import CorruptFileError, StorageError
from dynaquant_core.plugins import MARKER, is_checkpoint

__all__ = [
    "ADAPTER_WEIGHTS",
    "DEFAULT",
    "STATE_FILES",
    "WEIGHTS",
    "is_ours",
    "load_json",
    "load_torch",
    "scheduler_state",
    "told",
]

#: Files of a model's weights and of an adapter's, the preferred ones first.
WEIGHTS: Final = (SAFE_WEIGHTS_NAME, SAFE_WEIGHTS_INDEX_NAME, WEIGHTS_NAME, WEIGHTS_INDEX_NAME)
ADAPTER_WEIGHTS: Final = (ADAPTER_SAFE_WEIGHTS_NAME, ADAPTER_WEIGHTS_NAME)

#: The adapter that lies in the checkpoint's own folder; others lie in folders of their name.
DEFAULT: Final = "default"

#: Files of weights and optimizers, native ones and ours; what else is in a checkpoint is somebody's own.
STATE_FILES: Final = re.compile(
    "|".join([*map(re.escape, (*WEIGHTS, *ADAPTER_WEIGHTS, OPTIMIZER_NAME))])
    + r"|.*-\d{5}-of-\d{5}\.\w+|.*\.dq|rest(-1)?\.pt|\.?dynaquant\..*"
)


def is_ours(path: Any) -> bool:
    """Whether ``path`` is a checkpoint of ours, over which no native one was saved since.

    A native save of the weights alone tells by the Trainer's state, which is younger than our marker then.

    Example:
        >>> is_ours("nowhere"), is_ours(None)
        (False, False)
    """
    if not is_checkpoint(path):
        return False
    folder = Path(path)
    whole = (SAFE_WEIGHTS_NAME, WEIGHTS_NAME, "*-of-*.safetensors", "*-of-*.bin")
    adapters = (name for name in ADAPTER_WEIGHTS for name in (name, f"*/{name}"))
    weights = any(True for name in (*whole, *adapters) for _ in folder.glob(name))
    return not (weights and ((folder / OPTIMIZER_NAME).is_file() or _saved_after(folder)))


def _saved_after(folder: Path) -> bool:
    """Whether the Trainer saved its state after a checkpoint of ours was committed there."""
    try:
        state, marker = folder / TRAINER_STATE_NAME, folder / MARKER
        return bool(state.stat().st_mtime_ns > marker.stat().st_mtime_ns)
    except FileNotFoundError:
        return False


def scheduler_state(folder: Path) -> dict[str, Any] | None:
    """The scheduler's state in a checkpoint; None where there is none.

    Raises:
        CorruptFileError, StorageError: the file cannot be read.
    """
    path = folder / SCHEDULER_NAME
    return load_torch(path) if path.is_file() else None


def load_torch(path: Path) -> Any:
    """What torch.save wrote; nothing in it is executed; raises CorruptFileError or StorageError."""
    try:
        with told("read", path):
            return torch.load(path, map_location="cpu", weights_only=True)
    except StorageError:
        raise
    except Exception as error:  # torch raises unpicklers', zip's and its own errors alike
        reason = str(error).strip().split("\n", maxsplit=1)[0]
        raise CorruptFileError(f"{str(path)!r} cannot be read as a file of torch.save ({reason}).") from error


def load_json(path: Path) -> Any:
    """What a file of JSON holds; raises CorruptFileError or StorageError."""
    try:
        with told("read", path):
            return json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise CorruptFileError(f"{str(path)!r} is not JSON ({error}).") from error


@contextmanager
def told(what: str, path: Path) -> Iterator[None]:
    """What the system refuses becomes one line."""
    try:
        yield
    except OSError as error:
        raise StorageError(f"cannot {what} {str(path)!r}: {error.strerror or error}.") from error
