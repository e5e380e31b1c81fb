"""What ``on_error`` means: a save that fails raises, or training goes on and the log says why."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from dynaquant_core.errors import DynaQuantError

__all__ = ["told"]

logger = logging.getLogger(__name__)


@contextmanager
def told(*, raises: bool) -> Iterator[None]:
    """Raises our own errors and those of a full memory, or logs them; any other is a bug and always raised.

    Example:
        >>> with told(raises=False):
        ...     raise DynaQuantError("the disk is full.")
    """
    try:
        yield
    except (DynaQuantError, MemoryError, torch.OutOfMemoryError) as error:
        if raises:
            raise
        logger.warning("training goes on after a failed save: %s", str(error) or "memory is full")
