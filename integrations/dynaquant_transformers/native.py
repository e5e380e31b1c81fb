"""Names of the Trainer's native files, and what the system says about them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from transformers.utils import (
    ADAPTER_SAFE_WEIGHTS_NAME,
    ADAPTER_WEIGHTS_NAME,
    SAFE_WEIGHTS_INDEX_NAME,
    SAFE_WEIGHTS_NAME,
    WEIGHTS_INDEX_NAME,
    WEIGHTS_NAME,
)

from dynaquant_core.errors import StorageError

__all__ = ["ADAPTER_WEIGHTS", "DEFAULT", "WEIGHTS", "told"]

#: Files of a model's weights and of an adapter's, the preferred ones first.
WEIGHTS: Final = (SAFE_WEIGHTS_NAME, SAFE_WEIGHTS_INDEX_NAME, WEIGHTS_NAME, WEIGHTS_INDEX_NAME)
ADAPTER_WEIGHTS: Final = (ADAPTER_SAFE_WEIGHTS_NAME, ADAPTER_WEIGHTS_NAME)

#: The adapter that lies in the checkpoint's own folder; others lie in folders of their name.
DEFAULT: Final = "default"


@contextmanager
def told(what: str, path: Path) -> Iterator[None]:
    """What the system refuses becomes one line."""
    try:
        yield
    except OSError as error:
        raise StorageError(f"cannot {what} {str(path)!r}: {error.strerror or error}.") from error
