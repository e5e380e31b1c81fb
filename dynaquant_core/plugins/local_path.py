"""A path that a framework gives, as a save in the background takes it."""

from __future__ import annotations

import os
import re
from pathlib import Path

from dynaquant_core.config import require

__all__ = ["local_path"]

#: "s3://bucket/x", and what is left of it once somebody made a Path of it.
REMOTE = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/")


def local_path(folder: str | os.PathLike[str]) -> Path:
    """An absolute path, so that a job does the right thing wherever the process has gone meanwhile.

    Raises:
        ConfigError: it is remote.

    Example:
        >>> local_path("/run/../step-1").as_posix()
        '/run/../step-1'
    """
    text = os.fspath(folder)
    require(REMOTE.match(text) is None, f"{text!r} is a remote path; save into a local or mounted folder.")
    return Path(text).absolute()
