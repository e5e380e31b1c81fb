"""Paths as Lightning's own file system reads them: "~" is somebody's home, "file://" the local disk."""

from __future__ import annotations

import os
from typing import Any

from dynaquant_core.plugins import is_checkpoint

__all__ = ["is_ours", "local"]

#: What fsspec takes for this disk; the short ones are what `Path` leaves of the long ones.
SCHEMES = ("file://", "local://", "file:", "local:")


def local(path: Any) -> str:
    """The place on this disk that ``path`` names; remote ones, and everything plain, as they are.

    Example:
        >>> local("file:///data/last.ckpt"), local("runs/last.ckpt"), local("s3://bucket/last.ckpt")
        ('/data/last.ckpt', 'runs/last.ckpt', 's3://bucket/last.ckpt')
    """
    text: str = os.fspath(path)
    scheme = next((scheme for scheme in SCHEMES if text.startswith(scheme)), "")
    return os.path.expanduser(text.removeprefix(scheme))  # noqa: PTH111 - text, as its owner writes it


def is_ours(path: Any) -> bool:
    """Whether ``path``, or whatever a loader was given in its place, is a folder with a whole checkpoint."""
    return isinstance(path, (str, os.PathLike)) and is_checkpoint(local(path))
