"""How a mask is found where none is given."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

from torch import Tensor, nn

from dynaquant_core.config import require, require_choice, require_number
from dynaquant_core.errors import ConfigError
from dynaquant_core.memory.samo.masks import Scope, magnitude_masks, prunable
from dynaquant_core.state import bare_name, matches

__all__ = ["Pruning", "dense_patterns"]


@dataclass(frozen=True, slots=True)
class Pruning:
    """By magnitude, so much of each layer or of all.

    Args:
        sparsity: share to prune, in [0, 1).
        scope: "layer": the same share of every layer; "global": one threshold for all.
        dense: patterns of parameters that are not pruned.
        embeddings: whether embedding tables, and heads tied to them, are pruned too.

    Raises:
        ConfigError: an argument is out of range.
    """

    sparsity: float
    scope: Scope
    dense: tuple[str, ...]
    embeddings: bool

    def __post_init__(self) -> None:
        require_number("samo", "sparsity", self.sparsity, 0.0, 1.0, open_high=True)
        require_choice("samo", "scope", self.scope, ("layer", "global"))

    def require_something(self, model: nn.Module, names: Sequence[str]) -> None:
        """Raises ConfigError where a model has nothing that may be pruned."""
        found = prunable(model, names, dense=self.dense, embeddings=self.embeddings)
        require(
            bool(found), "samo: no parameter can be pruned: all are vectors, embeddings or match `dense`."
        )

    def masks(
        self, weights: Mapping[str, Tensor], model: nn.Module, names: Sequence[str]
    ) -> dict[str, Tensor]:
        """Masks of what may be pruned among ``names``, by the values of ``weights``."""
        found = prunable(model, names, dense=self.dense, embeddings=self.embeddings)
        return magnitude_masks({name: weights[name] for name in found}, self.sparsity, scope=self.scope)


def dense_patterns(dense: Any, model: nn.Module) -> tuple[str, ...]:
    """What `wrap` takes as ``dense``, as patterns.

    Raises:
        ConfigError: one covers no parameter, and would leave what it was meant for to the pruner.
    """
    found = (dense,) if isinstance(dense, str) else tuple(dense) if isinstance(dense, Sequence) else (dense,)
    names = [bare_name(name) for name, _ in model.named_parameters(remove_duplicate=False)]
    for one in found:
        require(isinstance(one, str), f"samo: dense must be patterns of names, got {one!r}.")
        if not any(matches(name, [one]) for name in names):
            near = get_close_matches(one, names, n=1, cutoff=0.3)
            hint = f"did you mean {near[0]!r}?" if near else "use names of model.named_parameters()."
            raise ConfigError(f"samo: pattern {one!r} of dense covers no parameter; {hint}")
    return found
