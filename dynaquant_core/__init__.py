"""DynaQuant: compressed, crash-safe checkpoints for deep-learning training.

The public names below are imported when they are first used, so that ``import dynaquant_core`` stays light.

Example:
    >>> import dynaquant_core as dq
    >>> dq.Config(bins=8).bins
    8
"""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

from dynaquant_core.errors import (
    BudgetError,
    CheckpointNotFoundError,
    ChecksumError,
    ConfigError,
    CorruptFileError,
    DependencyError,
    DynaQuantError,
    EmptyStoreError,
    EvaluationError,
    ExperimentError,
    LimitError,
    MissingBaseError,
    NotAStoreError,
    SaveError,
    StateMismatchError,
    StorageError,
    StoreLockedError,
    StoreNotEmptyError,
    TruncatedError,
    UnknownCodecError,
    UnknownMethodError,
    UnsafePathError,
    UnsupportedStateError,
    VersionError,
)

if TYPE_CHECKING:
    from dynaquant_core.config import Config, LatticeConfig
    from dynaquant_core.files import load_file, save_file
    from dynaquant_core.store.info import CheckpointInfo
    from dynaquant_core.store.store import CheckpointStore
    from dynaquant_core.training.checkpointer import Checkpointer

__all__ = [
    "BudgetError",
    "CheckpointInfo",
    "CheckpointNotFoundError",
    "CheckpointStore",
    "Checkpointer",
    "ChecksumError",
    "Config",
    "ConfigError",
    "CorruptFileError",
    "DependencyError",
    "DynaQuantError",
    "EmptyStoreError",
    "EvaluationError",
    "ExperimentError",
    "LatticeConfig",
    "LimitError",
    "MissingBaseError",
    "NotAStoreError",
    "SaveError",
    "StateMismatchError",
    "StorageError",
    "StoreLockedError",
    "StoreNotEmptyError",
    "TruncatedError",
    "UnknownCodecError",
    "UnknownMethodError",
    "UnsafePathError",
    "UnsupportedStateError",
    "VersionError",
    "__version__",
    "load_file",
    "save_file",
]

try:
    __version__ = version("dynaquant")
except PackageNotFoundError:  # run from a source tree that is not installed
    __version__ = "0+unknown"

#: Public name -> the module that defines it, imported on first use.
_LAZY = {
    "CheckpointInfo": "dynaquant_core.store.info",
    "CheckpointStore": "dynaquant_core.store.store",
    "Checkpointer": "dynaquant_core.training.checkpointer",
    "Config": "dynaquant_core.config",
    "LatticeConfig": "dynaquant_core.config",
    "load_file": "dynaquant_core.files",
    "save_file": "dynaquant_core.files",
}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(_LAZY[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
