"""A path that a framework gives, as a save in the background takes it."""

from __future__ import annotations

import os
from pathlib import Path

from dynaquant_core.store.disk import path_from

__all__ = ["local_path"]


def local_path(folder: str | os.PathLike[str]) -> Path:
    """An absolute path, so that a job does the right thing wherever the process has gone meanwhile.

    Raises:
        ConfigError: it is an address of remote storage.

    Example:
        >>> local_path("/run/../step-1").as_posix()
        '/run/../step-1'
    """
    return path_from("a checkpoint's folder", folder).absolute()
