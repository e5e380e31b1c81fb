"""Tensors that nobody trains although they look like weights, by what they are called and lie beside.

Running statistics, and scales and codebooks of weights that are quantised already: what is lost of them no
training takes out, and a variance that noise has made negative is a NaN.  For states that come without their
model.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import torch

from dynaquant_core.state.leaves import Leaf
from dynaquant_core.state.places import Place, place_and_name

__all__ = ["STATISTICS", "given_names"]

#: Last part of the names of a normalisation's averages.
STATISTICS: Final = ("running_mean", "running_var")

#: What names of scales and offsets of codes hold, and of what codes stand for: "weight_scale_inv", "qzeros",
#: "nested_absmax", "codebooks", "quant_map".
SCALES: Final = ("scale", "absmax", "zero", "codebook", "centroid", "lookup_table", "quant_map")

#: Dtypes of codes, one each or several; whole numbers of 64 bits are places and counts.
CODES: Final = frozenset({torch.int8, torch.uint8, torch.int16, torch.int32})


def given_names(leaves: Iterable[Leaf]) -> frozenset[str]:
    """Names of running statistics, and of scales or codebooks beside a tensor of codes or of it.

    Codes are fp8, or whole numbers of 8 to 32 bits.

    Example:
        >>> from dynaquant_core.state.tree import flatten
        >>> codes = {"fc.weight": torch.ones(4, 4, dtype=torch.int8), "fc.scales": torch.ones(4, 2)}
        >>> sorted(given_names(flatten(codes | {"other.scales": torch.ones(4, 2)}).leaves))
        ['fc.scales']
    """
    found: set[str] = set()
    scales: dict[str, Place] = {}
    coded: set[Place] = set()
    for leaf in leaves:
        place, name = place_and_name(leaf)
        if name in STATISTICS:
            found.add(leaf.name)
        elif leaf.tensor.is_floating_point() and any(word in name.lower() for word in SCALES):
            scales[leaf.name] = place
        elif leaf.source != "data" and leaf.tensor.dim() and _is_code(leaf.tensor.dtype):
            coded |= {place, (place[0], f"{place[1]}.{name}".lstrip("."))}
    return frozenset(found | {name for name, place in scales.items() if place in coded})


def _is_code(dtype: torch.dtype) -> bool:
    return dtype in CODES or (dtype.is_floating_point and dtype.itemsize == 1)
