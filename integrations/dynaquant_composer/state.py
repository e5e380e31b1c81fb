"""The dictionary that Composer would have written, every tensor in it the live one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from composer.core import State
from composer.utils import reproducibility
from composer.utils.checkpoint import glob_filter

__all__ = ["state_of"]


def state_of(
    state: State, weights_only: bool, ignore_keys: list[str] | Callable[[dict[str, Any]], None] | None
) -> dict[str, Any]:
    """What a checkpoint of this moment holds; random streams of all ranks, so every rank calls it.

    Args:
        state: of the trainer.
        weights_only: leave out everything but the model.
        ignore_keys: as `CheckpointSaver`: paths to drop, or a function that changes the dictionary.
    """
    if weights_only:
        kept = {
            "model": state.get_model_state_dict(),
            "integrations": state._get_integrations_state_dict(),
            "metadata": state._get_state_metadata(),
        }
        tree: dict[str, Any] = {"state": kept}
    else:
        tree = {"state": state.state_dict(), "rng": reproducibility.get_rng_state()}
    metadata = tree["state"]["metadata"]
    metadata["torch_version"] = str(metadata["torch_version"])  # a class of torch's own, for a text
    if ignore_keys:
        drop = ignore_keys if callable(ignore_keys) else glob_filter(ignore_keys)
        drop(tree)
        tree.setdefault("state", {})
    return tree
