"""What ``on_error`` means: a save that fails raises, or training goes on and the log says why."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from dynaquant_core.errors import DynaQuantError
from dynaquant_core.handlers import by_handler

__all__ = ["told"]

logger = logging.getLogger(__name__)


@contextmanager
def told(*, raises: bool) -> Iterator[None]:
    """Raises what goes wrong, or logs it; an error that is neither ours nor of a full memory with its place.

    What a signal's handler raises is raised: it is not about the save.

    Example:
        >>> with told(raises=False):
        ...     raise DynaQuantError("the disk is full.")
    """
    try:
        yield
    except (DynaQuantError, MemoryError, torch.OutOfMemoryError) as error:
        if raises or by_handler(error):
            raise
        logger.warning("training goes on after a failed save: %s", str(error) or "memory is full")
    except Exception as error:
        if raises or by_handler(error):
            raise
        logger.exception(
            "training goes on after a save that failed by a bug, ours or of what it was given (%s: %s)",
            type(error).__name__,
            error,
        )
