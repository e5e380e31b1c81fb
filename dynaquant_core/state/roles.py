"""What each tensor of a state is for, and which of them may be quantised.

Roles: "weight" (the model's tensors, buffers and averages included), "moment" (an optimizer's running
averages, by a closed table of names) and "exact" (everything else).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Final, Literal

import torch

from dynaquant_core.state.leaves import Leaf, Path

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
]

Role = Literal["weight", "moment", "exact"]

#: Path of a container, and what comes before the last dot of a key in it.
Place = tuple[Path, str]

Kind = Literal["first", "second", "factor", "centre"]

#: Last component of the names of optimizer tensors that are running averages, and of what: of gradients or of
#: steps ("first"), of their squares or magnitudes, never negative ("second"), rows or columns of the latter
#: ("factor"), or of gradients whose square is taken from a second moment ("centre").
#: Unknown ones stay exact: a scale or a counter must not be rounded.
MOMENT_KINDS: Final[Mapping[str, Kind]] = {
    "exp_avg": "first",  # Adam, NAdam, RAdam, Adamax, Adafactor, Lion
    "exp_avg_diff": "first",  # Adan
    "exp_avg_sq": "second",  # Adam, NAdam, RAdam, Adan
    "exp_avg_sq_col": "factor",  # Adafactor (Hugging Face)
    "exp_avg_sq_row": "factor",
    "exp_inf": "second",  # Adamax
    "max_exp_avg_sq": "second",  # AMSGrad
    "momentum_buffer": "first",  # SGD, RMSprop, Muon
    "square_avg": "second",  # RMSprop, Adadelta
    "grad_avg": "centre",  # centred RMSprop
    "acc_delta": "second",  # Adadelta
    "sum": "second",  # Adagrad
}
MOMENTS: Final = frozenset(MOMENT_KINDS)
#: Those that nothing else is called.
CERTAIN: Final = MOMENTS - {"sum"}

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

    Under a ``{state, param_groups}`` node: "moment" for floating tensors whose last key is in `MOMENTS`,
    else "exact".  The same wherever tensors with such names lie, such as in a state that was flattened
    ("optimizer.state.0.exp_avg_sq" as one key).  Elsewhere: "weight" for floating (and complex) tensors
    and for others that lie beside one in the same dictionary, such as ``num_batches_tracked``; else "exact".

    Example:
        >>> from dynaquant_core.state.tree import flatten
        >>> adam = {"state": {0: {"step": torch.tensor(3.0), "exp_avg": torch.zeros(4)}}, "param_groups": []}
        >>> assign_roles(flatten({"w": torch.zeros(4), "optimizer": adam}).leaves)
        {'w': 'weight', 'optimizer.state.0.step': 'exact', 'optimizer.state.0.exp_avg': 'moment'}
    """
    trained = _optimized(leaves)
    own = {leaf.name: leaf.in_optimizer or _apart(leaf)[0] in trained for leaf in leaves}
    beside = {leaf.path[:-1] for leaf in leaves if not own[leaf.name] and _is_floating(leaf)}
    return {leaf.name: _role(leaf, beside, in_optimizer=own[leaf.name]) for leaf in leaves}


def _optimized(leaves: Iterable[Leaf]) -> set[Place]:
    """Places, outside of optimizers' nodes, in which an optimizer's tensors of one parameter lie.

    A sum is one only beside a count of steps.
    """
    names: dict[Place, set[str]] = {}
    for leaf in leaves:
        place, name = _apart(leaf)
        names.setdefault(place, set()).add(name)
    return {place for place, held in names.items() if held & CERTAIN or {"sum", "step"} <= held}


def _apart(leaf: Leaf) -> tuple[Place, str]:
    """Where a leaf lies and what it is called there, dots within its key being levels too."""
    place, _, name = str(leaf.path[-1] if leaf.path else "").rpartition(".")
    return (leaf.path[:-1], place), name


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
        place, name = _apart(leaf)
        found.setdefault(place, {}).setdefault(MOMENT_KINDS.get(name), []).append(leaf.name)
    centred = [kinds for kinds in found.values() if "centre" in kinds]
    return frozenset(name for kinds in centred for name in (*kinds["centre"], *kinds.get("second", ())))


def moment_kind(name: str) -> Kind | None:
    """What a tensor averages, by the last component of its dotted name; None where the name is not known.

    Example:
        >>> moment_kind("optimizer.state.head.weight.exp_avg_sq"), moment_kind("m")
        ('second', None)
    """
    return MOMENT_KINDS.get(name.rpartition(".")[2].partition("~")[0])


def _role(leaf: Leaf, beside: set[Path], *, in_optimizer: bool) -> Role:
    if leaf.source == "data":
        return "exact"
    if in_optimizer:
        return "moment" if _is_floating(leaf) and _apart(leaf)[1] in MOMENTS else "exact"
    return "weight" if _is_floating(leaf) or leaf.path[:-1] in beside else "exact"


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
