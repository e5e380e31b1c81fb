"""What a killed process left unfinished is nothing to resume from, wherever Lightning chooses a path."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextvars import ContextVar
from functools import wraps
from pathlib import Path
from typing import Any

from lightning.pytorch.callbacks import OnExceptionCheckpoint
from lightning.pytorch.trainer.connectors.checkpoint_connector import _CheckpointConnector

from dynaquant_lightning.naming import is_unfinished

__all__ = ["install_resuming"]

MARK = "_dynaquant_looks"

#: Set while Lightning looks for what ``ckpt_path="last"`` may mean.
_choosing: ContextVar[bool] = ContextVar("_choosing", default=False)


def install_resuming() -> None:
    """Wraps what chooses between checkpoints that a Trainer did not name; a second call does nothing.

    Lightning takes the folder of an `OnExceptionCheckpoint` and the newest ``hpc_ckpt_N.ckpt`` for whole, as
    its own files are.  A folder of ours that was begun just before the process was killed is passed over, so
    that the same script resumes from the checkpoint before it.
    """
    if hasattr(_CheckpointConnector._parse_ckpt_path, MARK):
        return
    _CheckpointConnector._parse_ckpt_path = _marking(_CheckpointConnector._parse_ckpt_path)
    _CheckpointConnector._hpc_resume_path = property(_whole_hpc(_CheckpointConnector._hpc_resume_path.fget))
    OnExceptionCheckpoint.ckpt_path = property(_whole(OnExceptionCheckpoint.ckpt_path.fget))


def _marking(original: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(original)
    def _parse_ckpt_path(*args: Any, **kwargs: Any) -> Any:
        token = _choosing.set(True)
        try:
            return original(*args, **kwargs)
        finally:
            _choosing.reset(token)

    setattr(_parse_ckpt_path, MARK, True)
    return _parse_ckpt_path


def _whole(original: Callable[[Any], str]) -> Callable[[Any], str | None]:
    @wraps(original)
    def ckpt_path(self: Any) -> str | None:
        path = original(self)
        return None if _choosing.get() and is_unfinished(path) else path

    return ckpt_path


def _whole_hpc(original: Callable[[Any], str | None]) -> Callable[[Any], str | None]:
    @wraps(original)
    def _hpc_resume_path(self: Any) -> str | None:
        path = original(self)
        if path is None or not is_unfinished(path):
            return path
        found = {_version(each): each for each in Path(path).parent.iterdir() if not is_unfinished(each)}
        newest = max(found, default=-1)
        return str(found[newest]) if newest >= 0 else None

    return _hpc_resume_path


def _version(path: Path) -> int:
    """N of ``hpc_ckpt_N.ckpt``; -1 of everything else."""
    found = re.fullmatch(r"hpc_ckpt_(\d+)\.ckpt", path.name)
    return int(found[1]) if found else -1
