"""What ExCP keeps of a state: weights by their change, moments where their weight is kept (its sec. 3.2)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import inf, sqrt
from typing import Final

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from dynaquant_core.methods.base import Hints
from dynaquant_core.quantize.change import moved
from dynaquant_core.quantize.flat import as_float32, flatten, host_view
from dynaquant_core.quantize.survivors import above_mean, above_median
from dynaquant_core.state import moment_kind
from dynaquant_core.threads import map_threads

__all__ = ["Kept", "floats_of", "medians", "what_is_kept"]

#: Published: alpha, which a config multiplies; the most that it may come to in medians; beta.
ALPHA: Final = 5e-5
MOST_MEDIANS: Final = 2.5
BETA: Final = 2.0

#: Kinds of moments that average squared gradients.
SQUARES: Final = ("exp_avg_sq", "square_avg")

#: First moments that average gradients; others, of SGD and RMSprop, average steps.
GRADIENTS: Final = frozenset({"exp_avg"})


@dataclass(frozen=True, slots=True)
class Kept:
    """What is kept of one tensor.

    Args:
        mask: bool[n].
        is_change: of its change since the base, not of itself.
    """

    mask: NDArray[np.bool_]
    is_change: bool


def what_is_kept(
    state: Mapping[str, Tensor], base: Mapping[str, Tensor], alpha: float, hints: Hints
) -> dict[str, Kept]:
    """Masks by name; a tensor without one stays as it is: a weight without a base, a factored moment.

    Args:
        state: live tensors.
        base: what a reader holds of them.
        alpha: in multiples of the published one.
        hints: whose ``moments`` say which moments are a weight's.
    """

    def of_group(group: tuple[str, Mapping[str, str]]) -> dict[str, Kept]:
        weight, names = group
        moments = {kind: state[name] for kind, name in names.items()}
        found = {}
        if weight in state and weight in base:
            change = moved(state[weight], base[weight])
            found[weight] = Kept(above_median(change, medians(alpha, moments)), is_change=True)
        masks = _moments_masks(moments, found[weight].mask if weight in found else None)
        return found | {names[kind]: Kept(mask, is_change=False) for kind, mask in masks.items()}

    return {
        name: kept for found in map_threads(of_group, _groups(state, hints)) for name, kept in found.items()
    }


def _groups(state: Mapping[str, Tensor], hints: Hints) -> list[tuple[str, Mapping[str, str]]]:
    """(weight, its moments by kind), for every tensor of the state once; "" where nobody knows the weight."""
    owned = {
        weight: {kind: name for kind, name in kinds.items() if name in state}
        for weight, kinds in hints.moments.items()
    }
    known = {name for kinds in owned.values() for name in kinds.values()}
    others = [name for name in state if name not in known and name not in owned]
    weights = [name for name in others if hints.roles.get(name) != "moment"]
    strays: dict[str, dict[str, str]] = {}
    for name in others:
        if hints.roles.get(name) == "moment":
            place, _, kind = name.rpartition(".")
            strays.setdefault(place, {})[kind] = name
    return [
        *owned.items(),
        *((name, {}) for name in weights),
        *(("", kinds) for kinds in strays.values()),
    ]


def medians(alpha: float, moments: Mapping[str, Tensor]) -> float:
    """How many medians a change must be above.

    Example:
        >>> import torch
        >>> round(medians(2.0, {"exp_avg_sq": torch.full((4,), 1e-8)}), 6), medians(2.0, {})
        (1.0, 2.0)
    """
    square = next((moments[kind] for kind in SQUARES if kind in moments), None)
    if square is None or alpha == 0:
        return alpha
    mean = float(floats_of(square).mean(dtype=np.float64))
    return min(MOST_MEDIANS, alpha * ALPHA / sqrt(mean) if mean > 0 else inf)


def _moments_masks(
    moments: Mapping[str, Tensor], changed: NDArray[np.bool_] | None
) -> dict[str, NDArray[np.bool_]]:
    """Masks of a weight's moments by kind: the first moment says where, for the second too.

    A second moment without its first would be harmless, a first one without its second a leap; so they share
    the mask.  That holds where the first averages gradients, as Adam's.  Where none does (RMSprop, Adagrad,
    Adadelta) each step is divided by the second moment alone, and a pruned one is a leap of ten steps and
    more: all of it is kept.  What centred RMSprop subtracts from its squares must not outgrow them: both stay
    as they are.
    """
    kinds = {kind: moment_kind(kind) for kind in moments}
    seconds = [kind for kind in moments if kinds[kind] == "second" and "centre" not in kinds.values()]
    judge = next((kind for kind in moments if kinds[kind] == "first"), None)
    whole = {} if GRADIENTS & moments.keys() else {kind: floats_of(moments[kind]) > 0 for kind in seconds}
    if judge is None:
        return whole
    mask = above_mean(floats_of(moments[judge]), BETA)
    if changed is not None and changed.size == mask.size:
        mask &= changed
    firsts = [kind for kind in moments if kinds[kind] == "first"]
    shared = firsts if whole else [*firsts, *seconds]
    return whole | {kind: mask for kind in shared if moments[kind].numel() == mask.size}


def floats_of(tensor: Tensor) -> NDArray[np.float32]:
    """A tensor's values as float32[n] on the CPU; perhaps its own memory."""
    return as_float32(host_view(flatten(tensor).cpu()))
