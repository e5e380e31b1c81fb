"""Weights of native checkpoints that are saved over: they would pass for ours, and go once ours is whole.

Other weights in a folder are the user's own, as what ``save_model`` exported there, and stay.
"""

from __future__ import annotations

import logging
from functools import partial
from pathlib import Path

from dynaquant_accelerate.folders import OPTIMIZER, SIGN, Identity, identity, is_native, put_sign, weights_in
from dynaquant_core.plugins import PluginRun, is_checkpoint

__all__ = ["Former"]

logger = logging.getLogger(__name__)


class Former:
    """What lies where checkpoints of one accelerator go; the main process looks and removes."""

    def __init__(self) -> None:
        self._native: dict[Path, Identity] = {}

    def look(self, folder: Path) -> None:
        """Looks at a folder before anything of a save is in it."""
        kept = {path: before for path, before in self._native.items() if _is_still(path, before)}
        self._native = kept | (_of_native(folder) if is_native(folder) else {})
        others = sorted(path.name for path in weights_in(folder) if path not in self._native)
        if others and not is_checkpoint(folder):
            logger.warning(
                "%s in %s is no part of the checkpoints saved there, and stays: load_state without install() "
                "would take it for theirs",
                ", ".join(others),
                folder,
            )

    def sign(self, folder: Path) -> None:
        """Puts `SIGN` there, in place of a native file of that name, unless a hook of the user's has one."""
        file = folder / SIGN
        put_sign(folder, replace=file in self._native and _is_still(file, self._native[file]))

    def remove(self, run: PluginRun, folder: Path) -> None:
        """Removes the others behind the save that is under way, if that succeeds; what is new then stays."""
        for path, before in self._native.items():
            if path.parent == folder:
                run.remove(path, only_if=partial(_is_still, path, before))


def _of_native(folder: Path) -> dict[Path, Identity]:
    """Its weights, without what was written into the folder after it: its optimizer comes behind them."""
    written = (folder / OPTIMIZER).stat().st_mtime_ns
    return {path: before for path, before in weights_in(folder).items() if before.modified <= written}


def _is_still(path: Path, before: Identity) -> bool:
    return path.exists() and identity(path) == before
