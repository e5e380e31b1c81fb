"""Which versions of Lightning these modules fit, checked by what they lean on and not by number alone."""

from __future__ import annotations

import logging
import re
from importlib import import_module
from operator import attrgetter

from dynaquant_core.errors import DependencyError

__all__ = ["KNOWN", "require_lightning"]

logger = logging.getLogger(__name__)

#: Releases whose tests were run.
KNOWN = ("2.6",)

#: Everything outside Lightning's documented interface that this package touches.
NEEDED = (
    ("lightning.pytorch.core.saving", "pl_load"),
    ("lightning.fabric.plugins.io.torch_io", "pl_load"),
    ("lightning.pytorch.callbacks", "ModelCheckpoint.file_exists"),
    ("lightning.pytorch.callbacks", "ModelCheckpoint._find_last_checkpoints"),
    ("lightning.pytorch.callbacks", "ModelCheckpoint._save_checkpoint"),
    ("lightning.pytorch.callbacks", "ModelCheckpoint._remove_checkpoint"),
    ("lightning.pytorch.callbacks", "OnExceptionCheckpoint.ckpt_path"),
    ("lightning.pytorch.trainer.connectors.checkpoint_connector", "_CheckpointConnector._parse_ckpt_path"),
    ("lightning.pytorch.trainer.connectors.checkpoint_connector", "_CheckpointConnector._hpc_resume_path"),
    ("lightning.pytorch.strategies", "Strategy.checkpoint_io"),
    ("lightning.pytorch.utilities.combined_loader", "CombinedLoader.flattened"),
)


def require_lightning() -> str:
    """The version of Lightning that is installed, if this package can work with it.

    Raises:
        DependencyError: it is not installed, or lacks something that is needed; says what to install.
    """
    try:
        version = str(import_module("lightning").__version__)
    except ImportError as error:
        raise DependencyError.of_extra("dynaquant_lightning needs Lightning", "lightning") from error
    missing = [f"{module}.{name}" for module, name in NEEDED if not _has(module, name)]
    if missing:
        raise DependencyError.of_extra(
            f"lightning {version} has no {', '.join(missing)}, which dynaquant_lightning builds on; it is "
            f"known to work with {', '.join(KNOWN)}",
            "lightning",
        )
    if not re.match("|".join(re.escape(known) + r"(\D|$)" for known in KNOWN), version):
        logger.warning("lightning %s was not tested with dynaquant_lightning (%s was)", version, KNOWN)
    return version


def _has(module: str, name: str) -> bool:
    try:
        attrgetter(name)(import_module(module))
    except (ImportError, AttributeError):
        return False
    return True
