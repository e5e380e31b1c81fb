"""How wide a step is in each tensor (ours): where a loss surface is flat, and weights spread, steps are wide.

``step_T = scale * G * rel_T``.  G is the geometric mean of the tensors' spreads, each weight counting once,
so that ``scale`` has no unit; rel_T, whose own such mean is 1, shares the error out: sqrt(std_T /
sqrt(Fisher_T)), or sqrt(count_T) where no Fisher information is known.  A step is a bfloat16: two bytes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dynaquant_core.errors import ConfigError
from dynaquant_core.quantize.flat import to_bfloat16

__all__ = ["TensorStat", "is_step", "is_unit", "relative_steps", "round_step", "steps_of"]

#: Limits of a step: far from overflow and from subnormal numbers, both in a step and in what it multiplies.
SMALLEST, WIDEST = 2.0**-100, 2.0**100

#: Octaves that a tensor's relative step may be away from the median one.
REACH = 6.0

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class TensorStat:
    """What a tensor's step follows from.

    Attributes:
        count: number of weights.
        std: their root mean square about their mean, outliers held back (`spread`).
        fisher: mean of their squared gradients, such as Adam's bias-corrected second moments; None where
            nothing is known.
        vector: it has one dimension, so its bytes hardly count.
        widest: bound on its step, in its own spreads.
    """

    count: int
    std: float
    fisher: float | None = None
    vector: bool = False
    widest: float = math.inf


def relative_steps(stats: Mapping[str, TensorStat]) -> dict[str, float]:
    """Step of each tensor relative to the others.

    sqrt(std / sqrt(Fisher)) where Fisher information is known and not zero.  Elsewhere sqrt(count), placed so
    that both rules have the same mean where the first is known: tensors tend to share a network's squared
    gradients evenly, so that a weight of a large one matters less.  Measured, as order-0 bits a weight at
    equal divergence early and late in training, on a small GPT: Fisher 1.19 and 1.99, count 1.12 and 2.11,
    one step for all 1.79 and 2.65; on a CNN (squares of the gradient's EMA for Fisher): 1.21 and 1.58, .92
    and 1.47, 1.62 and 2.58.  Powers of std do worse than count.

    A tensor of equal values gets the narrowest step of all, one whose spread is not finite the median.

    Returns:
        Name -> positive, within a factor of 2^6 of the median.  The geometric mean over the tensors with a
        spread, each weight counting once, is 1.

    Example:
        >>> wide, narrow = TensorStat(10, 1.0, 1e-8), TensorStat(10, 1.0, 1e-4)
        >>> {name: round(step, 3) for name, step in relative_steps({"wide": wide, "narrow": narrow}).items()}
        {'wide': 3.162, 'narrow': 0.316}
    """
    if not stats:
        return {}
    weights, spreads, usual = columns(stats)
    octaves = np.zeros(weights.size)
    if usual.any():
        fisher = np.array([stat.fisher or math.nan for stat in stats.values()], dtype=np.float64)
        octaves[usual] = rule(weights[usual], spreads[usual], fisher[usual])
        middle = weighted_median(octaves[usual], weights[usual])
        octaves[~usual] = middle
        octaves[spreads == 0] = -math.inf
        octaves = np.clip(octaves, middle - REACH, middle + REACH)
        octaves -= np.average(octaves[usual], weights=weights[usual])
    return dict(zip(stats, np.exp2(octaves).tolist(), strict=True))


def steps_of(scale: float, stats: Mapping[str, TensorStat]) -> dict[str, float]:
    """Step of each tensor: scale * G * rel_T, rounded (`round_step`), at most widest_T * std_T.

    Of a vector, at most scale * std_T as well: a bias before a batch norm has no gradient while the norm
    takes its mean away, and yet its noise is seen once the norm goes by running means.

    Args:
        scale: positive, without a unit; the mean step in mean spreads.
        stats: of every tensor.

    Returns:
        Name -> step.  Where no tensor has a spread, the smallest step there is.

    Raises:
        ConfigError: the scale is not a positive finite number.

    Example:
        >>> steps_of(0.5, {"one": TensorStat(10, 2.0), "flat": TensorStat(5, 0.0)})
        {'one': 1.0, 'flat': 0.015625}
    """
    if not (math.isfinite(scale) and scale > 0):
        raise ConfigError(f"lattice: scale must be a positive finite number, found {scale!r}.")
    if not stats:
        return {}
    weights, spreads, usual = columns(stats)
    if not usual.any():
        return dict.fromkeys(stats, SMALLEST)
    mean = 2.0 ** float(np.average(np.log2(spreads[usual]), weights=weights[usual]))
    steps = {name: scale * mean * step for name, step in relative_steps(stats).items()}
    return {name: round_step(min(step, _cap(stats[name], scale))) for name, step in steps.items()}


def _cap(stat: TensorStat, scale: float) -> float:
    """The widest step that a tensor may have."""
    spreads = min(stat.widest, scale if stat.vector else math.inf)
    return spreads * stat.std if 0 < stat.std < math.inf else math.inf


def round_step(x: float) -> float:
    """The nearest step: a bfloat16 from 2^-100 to 2^100.

    Raises:
        ConfigError: the number is not positive.

    Example:
        >>> round_step(0.1), round_step(1e-300) == 2.0**-100
        (0.10009765625, True)
    """
    if not x > 0:
        raise ConfigError(f"lattice: a step must be positive, found {x!r}.")
    bits = np.array([min(max(x, SMALLEST), WIDEST)], dtype=np.float32).view(np.uint32)
    return float((to_bfloat16(bits).astype(np.uint32) << np.uint32(16)).view(np.float32)[0])


def is_step(x: float) -> bool:
    """Whether a number is one that `round_step` returns."""
    return SMALLEST <= x <= WIDEST and round_step(x) == x


def is_unit(x: float) -> bool:
    """Whether values may be decoded with this number in place of a step: a float32 within a step's limits."""
    return SMALLEST <= x <= WIDEST and float(np.float32(x)) == x


def columns(stats: Mapping[str, TensorStat]) -> tuple[Floats, Floats, NDArray[np.bool_]]:
    """(counts, spreads, whether a tensor has weights and a finite spread above zero)."""
    weights = np.array([stat.count for stat in stats.values()], dtype=np.float64)
    spreads = np.array([stat.std for stat in stats.values()], dtype=np.float64)
    return weights, spreads, (weights > 0) & (spreads > 0) & np.isfinite(spreads)


def rule(weights: Floats, spreads: Floats, fisher: Floats) -> Floats:
    """log2 of the relative steps, not yet normalised."""
    known = (fisher > 0) & np.isfinite(fisher)
    octaves: Floats = 0.5 * np.log2(weights)
    if known.any():
        law = 0.5 * np.log2(spreads[known]) - 0.25 * np.log2(fisher[known])
        octaves += np.average(law - octaves[known], weights=weights[known])
        octaves[known] = law
    return octaves


def weighted_median(values: Floats, weights: Floats) -> float:
    """The value at which half of the weight is reached."""
    order = np.argsort(values, kind="stable")
    total = np.cumsum(weights[order])
    return float(values[order[np.searchsorted(total, total[-1] / 2)]])
