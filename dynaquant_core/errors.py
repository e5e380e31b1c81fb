"""One class a broken invariant.

Every error DynaQuant raises on purpose derives from `DynaQuantError`.  A message is one sentence that
says what broke, where, what was expected, what was found and what the user can do about it.

Example:
    >>> from dynaquant_core import errors
    >>> issubclass(errors.ChecksumError, errors.CorruptFileError)
    True
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = [
    "BudgetError",
    "CheckpointNotFoundError",
    "ChecksumError",
    "ConfigError",
    "CorruptFileError",
    "DependencyError",
    "DynaQuantError",
    "EmptyStoreError",
    "EvaluationError",
    "ExperimentError",
    "GradientError",
    "LimitError",
    "MissingBaseError",
    "NotAStoreError",
    "RankLostError",
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
]


class DynaQuantError(Exception):
    """Base of every error raised on purpose; the command line prints it as one line and exits 1."""


# -- what the user asked for ---------------------------------------------------------------------


class ConfigError(DynaQuantError, ValueError):
    """An option, a configuration point or a YAML value is unknown, ill-typed or out of range."""


class UnknownMethodError(ConfigError):
    """No method of that name is built in or installed through an entry point."""


class ExperimentError(DynaQuantError):
    """An experiment cannot run: data missing, a foreign output folder, a training process that failed."""


class DependencyError(DynaQuantError, ImportError):
    """An optional dependency is missing; the message holds the exact install command."""

    @classmethod
    def of_extra(cls, what: str, extra: str) -> Self:
        """Of a dependency that one of DynaQuant's extras brings.

        The command names a folder and no package: no index has one of ours, and somebody else's may be there.

        Args:
            what: needs what, or lacks what.
            extra: as `pyproject.toml` calls it.

        Example:
            >>> print(DependencyError.of_extra("plots need matplotlib", "plots"))
            plots need matplotlib; run in DynaQuant's own folder: python -m pip install '.[plots]'
        """
        return cls(f"{what}; run in DynaQuant's own folder: python -m pip install '.[{extra}]'")


# -- the training state --------------------------------------------------------------------------


class UnsupportedStateError(DynaQuantError, TypeError):
    """A tree holds an object that a checkpoint cannot hold; the message names its path."""


class StateMismatchError(DynaQuantError):
    """Stored tensors do not fit the model or tree they should be loaded into; names them.

    Attributes:
        in_part: whether it came when some of what was to be restored had been written already.
    """

    in_part = False


class RankLostError(DynaQuantError, ConnectionError):
    """Another process of a distributed job is gone, or no longer answers; names the ranks that it may be."""


class EvaluationError(DynaQuantError):
    """The user's evaluate raised, or the uncompressed model's quality is not finite."""


class GradientError(DynaQuantError, ArithmeticError):
    """Gradients hold NaN or infinity, or are not those of a whole backward pass; nothing was stepped."""


# -- the store -----------------------------------------------------------------------------------


class NotAStoreError(DynaQuantError):
    """The path is a file, or a folder that holds something else than checkpoints."""


class EmptyStoreError(DynaQuantError, LookupError):
    """There is no checkpoint at all, or no whole one is left."""


class CheckpointNotFoundError(DynaQuantError, LookupError):
    """An explicitly named step is not in the store."""


class StoreNotEmptyError(DynaQuantError):
    """The folder holds another run's checkpoints and nothing was restored from it."""


class StoreLockedError(DynaQuantError):
    """Another writer holds the store."""


class StorageError(DynaQuantError, OSError):
    """The operating system refused: disk full, no permission, input/output error."""


class BudgetError(DynaQuantError):
    """A disk or memory budget cannot be kept without removing what must stay."""


class SaveError(DynaQuantError):
    """A save that ran in the background failed; chained to its cause."""


class MissingBaseError(DynaQuantError):
    """A delta checkpoint's base is missing or is not the file it was written against."""


class UnsafePathError(DynaQuantError):
    """A path leaves the store, or is not a regular file."""


# -- the bytes -----------------------------------------------------------------------------------


class CorruptFileError(DynaQuantError):
    """A file's bytes break the format; the subclasses say how."""


class TruncatedError(CorruptFileError):
    """A file or stream ends before what it announces."""


class ChecksumError(CorruptFileError):
    """Bytes differ from the checksum stored for them."""


class LimitError(CorruptFileError):
    """A length or count is over the format's limit; refused before anything is allocated."""


class VersionError(CorruptFileError):
    """A file was written by a newer format version; the message says what to install."""


class UnknownCodecError(CorruptFileError):
    """A stream names a codec id that this version does not have."""
