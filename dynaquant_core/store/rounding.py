"""Scales and biases in bfloat16, where a state of weights alone is saved with one point of codebooks (ours).

Its method takes no vectors.  Bit for bit they take three bytes each, in a narrow convolutional network as
much as all its matrices together, of which that point keeps a few levels; rounded they take half as much, and
come back within 2^-7 of their size, up or down by chance.  Where an optimizer or a search is at hand they
stay what they are.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import Any, Final

import torch

from dynaquant_core.config import Config
from dynaquant_core.methods.base import Method
from dynaquant_core.methods.rounded import rounded
from dynaquant_core.state import Leaf, Tree, affine_names, assign_roles, digest_of, has_range
from dynaquant_core.store.covering import covers_leaf

__all__ = ["with_rounded_vectors"]

#: Shorter vectors would save next to nothing.
LEAST: Final = 16

#: Dtypes with more bits than are kept.
ROUNDED: Final = (torch.float32, torch.float64)


def with_rounded_vectors(
    tree: Tree, config: Any, method: Method, kept: Collection[str], exact: tuple[str, ...]
) -> Tree:
    """The tree, or one in which scales and biases are rounded copies; the state's own tensors stay.

    Args:
        tree: a whole state.
        config: the point that was asked for; None: none was.
        method: of the weights.
        kept: names of tensors that stay bit for bit.
        exact: patterns of the same.
    """
    options = method.options()
    if not isinstance(config, Config) or config.bins == "exact" or options.get("profile") == "paper":
        return tree
    if any(leaf.in_optimizer for leaf in tree.leaves) or "moment" in assign_roles(tree.leaves).values():
        return tree
    names = affine_names(tree.leaves) - frozenset(kept)

    def is_rounded(leaf: Leaf) -> bool:
        if leaf.name not in names or leaf.tensor.dtype not in ROUNDED or leaf.tensor.numel() < LEAST:
            return False
        return not covers_leaf(tree, leaf, exact) and has_range(leaf.tensor)

    return replace(tree, leaves=[_rounded(leaf) if is_rounded(leaf) else leaf for leaf in tree.leaves])


def _rounded(leaf: Leaf) -> Leaf:
    """Always the same for the same values: what did not change costs a delta nothing.

    Anew for others: by draws that stayed, each value would drift its own way over restores.  A vector that
    hardly moves, by a hundredth of a step, takes 1.5 bits a value more for it; one that moves a step, none.
    """
    plain = rounded(leaf.tensor, digest_of({leaf.name: leaf.tensor}))
    return replace(leaf, tensor=plain.tensor(leaf.tensor.device))
