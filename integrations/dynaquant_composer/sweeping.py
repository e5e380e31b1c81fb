"""What saves and rotations that died have left is removed; whatever else lies in the folder stays."""

from __future__ import annotations

import logging
from pathlib import Path

from dynaquant_composer.folder import REMOVING
from dynaquant_composer.names import Names
from dynaquant_composer.pointer import folder_of
from dynaquant_core.errors import DynaQuantError
from dynaquant_core.plugins import is_checkpoint
from dynaquant_core.plugins.folder import PENDING, remove_abandoned

__all__ = ["sweep"]

logger = logging.getLogger(__name__)


def sweep(names: Names) -> None:
    """Removes what died, as this library's own marks say; only for who is about to train there.

    A folder that somebody is writing into, of this process or another, is left to its writer.
    """
    for file in names.files():
        folder = folder_of(file)
        if _is_left(file, folder):
            _remove(file, folder)
        elif not (is_checkpoint(folder) and file.exists()):
            logger.info("%s is no checkpoint that can be loaded, and nothing says why: it stays", folder)


def _is_left(file: Path, folder: Path) -> bool:
    """Whether it is half of a save, or what a rotation had given up."""
    if is_checkpoint(folder):
        return (folder / REMOVING).exists() and not file.exists()
    return (folder / PENDING).exists()


def _remove(file: Path, folder: Path) -> None:
    try:
        if remove_abandoned(folder, lambda: _is_left(file, folder)):  # nobody has finished it meanwhile
            logger.info("%s was left by a process that died: removed", folder)
    except DynaQuantError as error:
        logger.info("%s stays: %s", folder, error)
