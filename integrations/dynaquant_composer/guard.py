"""What is refused, each with one line that says what is and is not supported."""

from __future__ import annotations

import logging
from typing import Any, Final

import composer
from composer.core import State
from composer.loggers import Logger
from composer.utils import is_compressed_pt, is_tar, parse_uri

from dynaquant_core.errors import ConfigError
from dynaquant_core.plugins import is_sharded

__all__ = ["require_local", "require_uncompressed", "require_whole_weights", "say_what_is_untested"]

logger = logging.getLogger(__name__)

#: Release lines that the tests have run with.
KNOWN: Final = ("0.32.",)

#: Extensions for which Composer calls a program, and what else stands for one.
COMPRESSED: Final = (".bz2", ".gz", ".lz4", ".lzma", ".lzo", ".tgz", ".xz", ".zst", ".zstd")


def require_local(folder: Any) -> None:
    """Raises ConfigError where checkpoints would go to an object store."""
    if parse_uri(str(folder))[0]:
        raise ConfigError(
            f"DynaQuantCallback writes to a folder of a file system, not to {str(folder)!r}: save locally "
            f"and upload what `dynaquant export --to composer` makes of a checkpoint."
        )


def require_uncompressed(*names: Any) -> None:
    """Raises ConfigError for names that Composer would unpack or follow: what they name is no such file."""
    for name in map(str, filter(None, names)):
        if name.endswith(COMPRESSED) or is_compressed_pt(name):
            raise ConfigError(
                f"{name!r} asks for a compressed file, and DynaQuant compresses by itself: end the name "
                f"in .pt."
            )
        if is_tar(name) or name.endswith(".symlink"):
            raise ConfigError(
                f"{name!r} names an archive or a link to Composer, which could not load it again: end the "
                f"name in .pt."
            )


def require_whole_weights(state: State) -> None:
    """Raises ConfigError for set-ups that spread one model's tensors, or their moments, over ranks."""
    if state.fsdp_enabled or state.fsdp_config is not None or getattr(state, "tp_config", None) is not None:
        raise ConfigError(
            "DynaQuantCallback saves models that every rank holds whole (one process, or DDP); FSDP, full or "
            "sharded, and tensor parallelism are not supported: use Composer's CheckpointSaver there."
        )
    for optimizer in filter(is_sharded, state.optimizers):
        raise ConfigError(
            f"DynaQuantCallback saves optimizers that every rank holds whole, and {type(optimizer).__name__} "
            "keeps the state of some parameters on each: train with the optimizer inside it."
        )


def say_what_is_untested(destinations: Logger) -> None:
    """Logs what will not happen, and what was never tried."""
    if not composer.__version__.startswith(KNOWN):
        logger.warning("tested with Composer 0.32, this is %s", composer.__version__)
    if destinations.has_file_upload_destination():
        logger.warning(
            "DynaQuant checkpoints are not uploaded by Composer's loggers: they stay in the folder"
        )
