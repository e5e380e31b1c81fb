"""Tensors of a module that nobody may write, as a table over a file that was mapped for reading."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from dynaquant_core.errors import StateMismatchError
from dynaquant_core.state import TensorSpec, read_only
from dynaquant_core.training.held import same_bits

__all__ = ["spare_unwritable"]


def spare_unwritable(module: nn.Module, state: dict[str, Any], what: str) -> None:
    """Puts the module's own tensors into ``state`` for those in read-only memory, which have the same values.

    To write there would end the process, the same values too.  A tensor that is given itself torch leaves
    alone, and so does not write it.

    Args:
        module: that will load the state.
        state: by the module's own names; changed in place.
        what: it is called in errors.

    Raises:
        StateMismatchError: one of them has other values in ``state``; nothing was changed.

    Example:
        >>> layer = nn.Linear(2, 2)
        >>> state = layer.state_dict()
        >>> spare_unwritable(layer, state, "the model")
        >>> state["weight"] is layer.weight
        False
    """
    named: dict[str, Tensor] = dict(module.named_parameters(remove_duplicate=False))
    named |= module.named_buffers(remove_duplicate=False)
    own = {name: named[name] for name in sorted(read_only(named) & state.keys())}
    other = [name for name, tensor in own.items() if not _is_same(state[name], tensor)]
    if other:
        raise StateMismatchError(
            f"{what} has {', '.join(other)} in read-only memory, and the checkpoint other values: map the "
            f'file with mmap_mode="c", or give the model a copy. Nothing was restored.'
        )
    state |= own


def _is_same(stored: Any, tensor: Tensor) -> bool:
    if not isinstance(stored, Tensor) or TensorSpec.of(stored) != TensorSpec.of(tensor):
        return False
    return same_bits(stored.cpu(), tensor)
