"""The Trainer's native files: names, whether a folder holds them, what the system says of them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from transformers.trainer import OPTIMIZER_NAME
from transformers.utils import (
    ADAPTER_SAFE_WEIGHTS_NAME,
    ADAPTER_WEIGHTS_NAME,
    SAFE_WEIGHTS_INDEX_NAME,
    SAFE_WEIGHTS_NAME,
    WEIGHTS_INDEX_NAME,
    WEIGHTS_NAME,
)

from dynaquant_core.errors import StorageError
from dynaquant_core.plugins import is_checkpoint

__all__ = ["ADAPTER_WEIGHTS", "DEFAULT", "STATE_FILES", "WEIGHTS", "is_ours", "told"]

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
    return not (weights and (folder / OPTIMIZER_NAME).is_file())


@contextmanager
def told(what: str, path: Path) -> Iterator[None]:
    """What the system refuses becomes one line."""
    try:
        yield
    except OSError as error:
        raise StorageError(f"cannot {what} {str(path)!r}: {error.strerror or error}.") from error
