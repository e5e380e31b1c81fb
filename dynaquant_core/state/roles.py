"""What each tensor of a state is for, and which of them may be quantised.

Roles: "weight" (the model's tensors, buffers and averages included), "moment" (an optimizer's running
averages, by a closed table of names) and "exact" (everything else).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase
from typing import Final, Literal

import torch

from dynaquant_core.state.leaves import Leaf
from dynaquant_core.state.pairs import paired_names
from dynaquant_core.state.places import (
    LARGEST,
    MOMENT_KINDS,
    MOMENTS,
    Kind,
    Place,
    apart,
    kind_name,
    places_of,
)

__all__ = [
    "MIN_ELEMENTS",
    "MOMENTS",
    "MOMENT_KINDS",
    "Kind",
    "Role",
    "assign_roles",
    "centred_names",
    "fits_float32",
    "has_range",
    "is_finite",
    "is_named",
    "is_quantisable",
    "is_two_valued",
    "matches",
    "moment_kind",
    "never_falls",
]

Role = Literal["weight", "moment", "exact"]

#: Smaller tensors cost less exact than their codebook would.
MIN_ELEMENTS: Final = 256

#: Where no value of a tensor is larger, steps and buckets would end before its spread does: float32 itself
#: becomes coarse from 2^-126 down.
FAINT: Final = 2.0**-90

#: Values of a tensor that are looked at before all of them.
LOOK: Final = 16

_QUANTISABLE: Final = (torch.float64, torch.float32, torch.float16, torch.bfloat16)


def assign_roles(leaves: Sequence[Leaf]) -> dict[str, Role]:
    """The role of each leaf by name.

    Under a ``{state, param_groups}`` node, and under a key that says "optimizer" (`called`), "moment" for
    floating tensors whose last key is in `MOMENTS`, or that lie under such a key ("exp_avg_sq.0", an
    optimizer's own form) and have the shape of a weight; else "exact".  Elsewhere "moment" where such a last
    key lies in a state that was flattened ("adam.0.exp_avg_sq" as one key), and "exact" for its neighbours,
    for what lies under such a key, and for Adam's averages by letters (`pairs`).  All other floating (and
    complex) tensors are "weight", and with them those that lie beside one in the same dictionary, such as
    ``num_batches_tracked``; the rest is "exact".

    Example:
        >>> from dynaquant_core.state.tree import flatten
        >>> adam = {"state": {0: {"step": torch.tensor(3.0), "exp_avg": torch.zeros(4)}}, "param_groups": []}
        >>> assign_roles(flatten({"w": torch.zeros(4), "optimizer": adam}).leaves)
        {'w': 'weight', 'optimizer.state.0.step': 'exact', 'optimizer.state.0.exp_avg': 'moment'}
    """
    trained = places_of(leaves)
    inside = {leaf.name for leaf in leaves if kind_name(leaf.name) != _last(leaf)}
    own = {
        leaf.name: leaf.in_optimizer or leaf.name in inside or apart(leaf)[0] in trained for leaf in leaves
    }
    own |= dict.fromkeys(paired_names([leaf for leaf in leaves if not own[leaf.name]]), True)
    free = [leaf for leaf in leaves if not own[leaf.name] and _is_floating(leaf)]
    beside = {leaf.path[:-1] for leaf in free}
    shapes = {leaf.tensor.shape for leaf in free}

    def role_of(leaf: Leaf) -> Role:
        if leaf.source == "data":
            return "exact"
        if not own[leaf.name]:
            return "weight" if _is_floating(leaf) or leaf.path[:-1] in beside else "exact"
        averages = _is_floating(leaf) and apart(leaf)[1] in MOMENTS
        fits = leaf.name not in inside or (leaf.in_optimizer and leaf.tensor.shape in shapes)
        return "moment" if averages and fits else "exact"

    return {leaf.name: role_of(leaf) for leaf in leaves}


def centred_names(leaves: Iterable[Leaf]) -> frozenset[str]:
    """Names of the averages of gradients whose square an optimizer takes from a second moment, and of that.

    It takes the root of what is left, which is not a number where rounding made the square the larger one.
    Where gradients are steady next to nothing is left, so no error of either is small.

    Example:
        >>> from dynaquant_core.state.tree import flatten
        >>> entry = {"square_avg": torch.ones(4), "grad_avg": torch.ones(4), "momentum_buffer": torch.ones(4)}
        >>> sorted(centred_names(flatten({"state": {0: entry}, "param_groups": []}).leaves))
        ['state.0.grad_avg', 'state.0.square_avg']
    """
    found: dict[Place, dict[Kind | None, list[str]]] = {}
    for leaf in leaves:
        place, name = apart(leaf)
        found.setdefault(place, {}).setdefault(MOMENT_KINDS.get(name), []).append(leaf.name)
    centred = [kinds for kinds in found.values() if "centre" in kinds]
    return frozenset(name for kinds in centred for name in (*kinds["centre"], *kinds.get("second", ())))


def moment_kind(name: str) -> Kind | None:
    """What a tensor averages, by its dotted name; None where that says nothing of it.

    Example:
        >>> moment_kind("optimizer.state.head.weight.exp_avg_sq"), moment_kind("m")
        ('second', None)
    """
    return MOMENT_KINDS.get(kind_name(name))


def never_falls(name: str) -> bool:
    """Whether a tensor is the largest so far of a second moment, by its dotted name.

    Adamax's ``exp_inf`` is not: it is the larger of what is new and of itself, a little smaller every step.

    Example:
        >>> never_falls("optimizer.state.0.max_exp_avg_sq"), never_falls("optimizer.state.0.exp_inf")
        (True, False)
    """
    return kind_name(name) in LARGEST


def _last(leaf: Leaf) -> str:
    """The last component of a leaf's name."""
    return leaf.name.rpartition(".")[2].partition("~")[0]


def _is_floating(leaf: Leaf) -> bool:
    dtype = leaf.tensor.dtype
    return leaf.source != "data" and (dtype.is_floating_point or dtype.is_complex)


def is_finite(tensor: torch.Tensor) -> bool:
    """Whether every element of a float64, float32, float16 or bfloat16 tensor is finite (one pass, no copy).

    Example:
        >>> is_finite(torch.tensor([1.0, float("nan")])), is_finite(torch.empty(0))
        (False, True)
    """
    return math.isfinite(_largest(tensor))


def fits_float32(tensor: torch.Tensor) -> bool:
    """Whether a tensor is float64, float32, float16 or bfloat16 and all its values are finite in float32.

    Example:
        >>> fits_float32(torch.tensor(1e300, dtype=torch.float64)), fits_float32(torch.tensor(3))
        (False, False)
    """
    return tensor.dtype in _QUANTISABLE and _largest(tensor) <= torch.finfo(torch.float32).max


def has_range(tensor: torch.Tensor) -> bool:
    """Whether a tensor fits float32 (`fits_float32`) and its values are not all fainter than `FAINT`, but 0.

    Example:
        >>> has_range(torch.tensor([1e-40, 1.0])), has_range(torch.tensor([1e-40, 0.0]))
        (True, False)
    """
    if tensor.dtype not in _QUANTISABLE:
        return False
    largest = _largest(tensor)
    return largest == 0.0 or FAINT <= largest <= torch.finfo(torch.float32).max


def _largest(tensor: torch.Tensor) -> float:
    """The largest magnitude of a floating tensor; 0 where it is empty, NaN where it holds one."""
    if tensor.numel() == 0:
        return 0.0
    ends: list[float] = torch.stack(torch.aminmax(tensor.detach())).tolist()  # NaN wins both
    return max(map(abs, ends))


def is_quantisable(tensor: torch.Tensor) -> bool:
    """Whether a tensor may be quantised at all.

    It must have a range (`has_range`), at least two dimensions and `MIN_ELEMENTS` elements.

    Example:
        >>> is_quantisable(torch.zeros(16, 16)), is_quantisable(torch.zeros(256))
        (True, False)
    """
    return tensor.dim() >= 2 and tensor.numel() >= MIN_ELEMENTS and has_range(tensor)


def is_two_valued(tensor: torch.Tensor) -> bool:
    """Whether a floating matrix (64, 32 or 16 bits), or larger, holds two different values, as a mask does.

    Example:
        >>> is_two_valued(torch.ones(16, 16).tril()), is_two_valued(torch.ones(16, 16))
        (True, False)
    """
    if tensor.dtype not in _QUANTISABLE or tensor.dim() < 2 or tensor.numel() == 0:
        return False
    tensor = tensor.detach()
    row = tensor[(0,) * (tensor.dim() - 1)]
    if len(set(row[:LOOK].tolist())) > 2:  # of what is trained, a few values tell
        return False
    low, high = torch.aminmax(tensor)
    return bool((low < high) & ((tensor == low) | (tensor == high)).all())


def matches(name: str, patterns: Iterable[str]) -> bool:
    """Whether a pattern of ``exact=`` covers a tensor.

    A pattern (fnmatch, case matters) covers a tensor if it matches its dotted name, the name of a module it
    lies in, or either of these counted from further in: the name a user knows from the model is often only
    the tail of the name in the whole state.

    Example:
        >>> matches("model.lm_head.weight", ["lm_head"]), matches("model.lm_head2.weight", ["lm_head"])
        (True, False)
        >>> matches("model.h.0.router.weight", ["*.router.*"]), matches("model.h.0.weight", ["*"])
        (True, True)
    """
    patterns = tuple(patterns)
    if not patterns:  # as a rule, and then names need not be taken apart
        return False
    parts = name.split(".")
    count = len(parts)
    candidates = [".".join(parts[i:j]) for i in range(count) for j in range(i + 1, count + 1)]
    return any(is_named(candidate, pattern) for pattern in patterns for candidate in candidates)


def is_named(name: str, pattern: str) -> bool:
    """Whether a pattern is the name, as it stands (a name may hold brackets), or matches it (fnmatch).

    Example:
        >>> is_named("layers[0]", "layers[0]"), is_named("layers1", "layers[0-9]")
        (True, True)
    """
    return name == pattern or fnmatchcase(name, pattern)
