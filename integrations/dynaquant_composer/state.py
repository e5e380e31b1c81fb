"""The dictionary that Composer would have written, every tensor in it the live one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from composer.core import State
from composer.utils import reproducibility
from composer.utils.checkpoint import glob_filter
from torch import Tensor, nn

__all__ = ["is_copied", "state_of"]


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


def is_copied(tree: Mapping[str, Any], model: nn.Module) -> bool:
    """Whether the tree holds copies of the model's tensors only, as some hook or ``state_dict`` made them."""
    own = {weight.untyped_storage().data_ptr() for weight in model.parameters()}
    held = [tensor for tensor in tree["state"].get("model", {}).values() if isinstance(tensor, Tensor)]
    return bool(held) and not any(tensor.untyped_storage().data_ptr() in own for tensor in held)
