"""Our folders as the dictionaries that Lightning saved, for everything that has no run."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch

from dynaquant_core.errors import NotAStoreError
from dynaquant_core.plugins import read_tree
from dynaquant_core.plugins.marker import Marker
from dynaquant_lightning.paths import local
from dynaquant_lightning.tree import from_tree, has_moments, kind_in

__all__ = ["FRAMEWORK", "device_of", "only_weights", "read_checkpoint", "require_ours", "was_with_optimizer"]

FRAMEWORK = "lightning"

#: torch's own switch, for programs that cannot say ``weights_only=False`` at each of their loads.
TRUSTED = "TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD"


def read_checkpoint(path: Any, map_location: Any = None, weights_only: bool | None = None) -> Any:
    """What was saved into a folder; arguments as those of `torch.load`.

    Raises:
        NotAStoreError: it is no checkpoint, or another framework's.
        DynaQuantError: it cannot be read.
    """
    folder = require_ours(path)
    tree = read_tree(folder, device=device_of(map_location), weights_only=only_weights(weights_only))
    return from_tree(tree, folder)


def was_with_optimizer(folder: Path, weights_only: bool | None = None) -> bool:
    """Whether an optimizer's state was saved into ``folder``; raises as `read_checkpoint`.

    Folders whose note does not say so, of versions that wrote none, are read to tell.
    """
    told = kind_in(Marker.read(folder).note)
    return has_moments(read_checkpoint(folder, weights_only=weights_only)) if told is None else told


def require_ours(path: Any) -> Path:
    """The path of a checkpoint that Lightning wrote; raises NotAStoreError where another framework did."""
    folder = Path(local(path))
    framework = Marker.read(folder).framework
    if framework != FRAMEWORK:
        raise NotAStoreError(
            f"{str(folder)!r} is a checkpoint of {framework}, not of Lightning; go on with {framework}, or "
            "take its weights out with: dynaquant export PATH --to safetensors -o FILE"
        )
    return folder


def only_weights(weights_only: bool | None) -> bool:
    """Whether objects whose reading could run code are refused: as `torch.load` takes the argument."""
    if weights_only is not None:
        return weights_only
    return os.environ.get(TRUSTED, "0").lower() not in {"1", "y", "yes", "true"}


def device_of(map_location: Any) -> Any:
    """The device where tensors go; a function or a mapping of locations has nothing to map here."""
    return map_location if isinstance(map_location, (str, torch.device)) else None
