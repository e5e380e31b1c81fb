"""Adam's two averages where nothing but a letter each says so: ``{"m": [...], "v": [...]}``.

In a state of a form of one's own, under a name that says nothing, they look like weights.  What tells is that
there are two of the same shapes, that a weight has these too, and that one of the two is never negative.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from dynaquant_core.state.leaves import Leaf

__all__ = ["paired_names"]

#: First and second moment.
PAIRS: Final = (("m", "v"), ("mu", "nu"))
LETTERS: Final = frozenset(letter for pair in PAIRS for letter in pair)

Place = tuple[tuple[str, ...], tuple[str, ...]]


def paired_names(leaves: Sequence[Leaf]) -> frozenset[str]:
    """Names of the tensors, among those that are no optimizer's so far, that are such a pair.

    Example:
        >>> import torch
        >>> from dynaquant_core.state.tree import flatten
        >>> own = {"m": [torch.randn(2, 3)], "v": [torch.ones(2, 3)], "t": 3}
        >>> sorted(paired_names(flatten({"model": {"w": torch.ones(2, 3)}, "trainer": own}).leaves))
        ['trainer.m.0', 'trainer.v.0']
    """
    found: dict[Place, dict[str, Leaf]] = {}
    for leaf in leaves:
        for place, letter in _places(leaf):
            found.setdefault(place, {})[letter] = leaf
    pairs = [
        (held[first], held[second])
        for held in found.values()
        for first, second in PAIRS
        if first in held and second in held and held[first].tensor.shape == held[second].tensor.shape
    ]
    members = {leaf.name for pair in pairs for leaf in pair}
    shapes = {leaf.tensor.shape for leaf in leaves if leaf.name not in members}
    return frozenset(
        leaf.name
        for first, second in pairs
        if first.tensor.shape in shapes and _never_negative(second)
        for leaf in (first, second)
    )


def _places(leaf: Leaf) -> Iterable[tuple[Place, str]]:
    """Where a leaf lies but for a letter on the way, and the letter."""
    if leaf.source != "tensor" or not leaf.tensor.is_floating_point() or not leaf.tensor.numel():
        return
    levels = tuple(part for key in leaf.path for part in str(key).split("."))
    for at, level in enumerate(levels):
        if level in LETTERS:
            yield (levels[:at], levels[at + 1 :]), level


def _never_negative(leaf: Leaf) -> bool:
    return bool(leaf.tensor.detach().min() >= 0)
