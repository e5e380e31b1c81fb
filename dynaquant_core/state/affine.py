"""Scales and biases of layers, told from other vectors by what lies beside them.

For states that come without their model and optimizer: a vector may as well be a buffer (weights of classes,
limits, frequencies), and what is lost of that no training takes out.  A bias beside a matrix with as many
rows or columns, and a weight beside a bias or a running mean of its length, are a layer's own.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from dynaquant_core.state.leaves import Leaf
from dynaquant_core.state.places import place_and_name

__all__ = ["affine_names"]

#: Last parts of names, with what a layer adds to them: "bias_ih_l0", "in_proj_bias".
BIAS: Final = "bias"
WEIGHT: Final = "weight"


def affine_names(leaves: Iterable[Leaf]) -> frozenset[str]:
    """Names of the floating vectors that are a layer's scale or bias, as far as names and shapes tell.

    Example:
        >>> import torch
        >>> from dynaquant_core.state.tree import flatten
        >>> layer = {"fc.weight": torch.ones(4, 2), "fc.bias": torch.ones(4), "loss.weight": torch.ones(4)}
        >>> norm = {"bn.weight": torch.ones(8), "bn.running_mean": torch.ones(8)}
        >>> sorted(affine_names(flatten(layer | norm).leaves))
        ['bn.weight', 'fc.bias']
    """
    floating = [leaf for leaf in leaves if leaf.source != "data" and leaf.tensor.is_floating_point()]
    shapes = {place_and_name(leaf): tuple(leaf.tensor.shape) for leaf in floating}

    def is_affine(leaf: Leaf) -> bool:
        place, name = place_and_name(leaf)
        shape = tuple(leaf.tensor.shape)
        if len(shape) != 1:
            return False
        if BIAS in name:
            weight = shapes.get((place, name.replace(BIAS, WEIGHT)), ())
            return weight == shape if len(weight) == 1 else shape[0] in weight[:2]
        return name == WEIGHT and shape in (shapes.get((place, BIAS)), shapes.get((place, "running_mean")))

    return frozenset(leaf.name for leaf in floating if is_affine(leaf))
