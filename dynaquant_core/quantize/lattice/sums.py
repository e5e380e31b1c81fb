"""How far a tensor's values spread, and how long it is: sums in one pass, the same bits for any threads."""

from __future__ import annotations

import math

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dynaquant_core.borrowed import borrowed
from dynaquant_core.quantize.flat import flatten
from dynaquant_core.quantize.lattice import kernels
from dynaquant_core.quantize.lattice.scattered import scattered
from dynaquant_core.quantize.torch_path import chunks
from dynaquant_core.threads import map_threads

__all__ = ["mean_square", "spread", "surroundings"]

#: Elements that are summed at a time, and in how many lanes; fixed, so that sums do not depend on threads.
CHUNK, LANES = 1 << 15, 256

#: At most about so many values say what is usual in a tensor: how far 99 in 100 are from the median.
LOOK, USUAL = 1 << 12, 0.99
#: A standard deviation of so many times that distance is the work of a few outliers.  Of 362 trained tensors
#: of five networks one comes to 11, the others to 2 at most.
INFLATED = 16.0
#: Outliers count as if they were so many times that distance from the median: 10 deviations of a normal one.
FAR = 4.0

Floats = NDArray[np.float64]


def spread(tensor: Tensor) -> float:
    """Standard deviation of a tensor's values, in float64 and in one pass.

    Where a few outliers make it what it is (`INFLATED`), they are first moved towards the others (`FAR`): one
    weight of a million would otherwise widen the step of all weights beside it.

    Args:
        tensor: floating, of any shape and device; float64 is first rounded to float32.

    Returns:
        0 for an empty tensor and, exactly, for equal values; not a finite number where a value is none.
        On the CPU the same bits for any number of threads.

    Raises:
        UnsupportedStateError: the tensor is not floating.

    Example:
        >>> spread(torch.tensor([1.0, 3.0]))
        1.0
    """
    flat = flatten(tensor)
    if not flat.numel():
        return 0.0
    pivot = float(flat[0].to(torch.float32))
    plain = deviation(flat, pivot, math.inf)
    if not plain > 0:
        return plain
    median, usual = surroundings(flat)
    return deviation(flat, median, FAR * usual) if plain > INFLATED * usual > 0 else plain


def mean_square(tensor: Tensor) -> float:
    """Mean of a tensor's squared values, in float64 and in one pass; as `spread` where a value is not finite.

    Example:
        >>> mean_square(torch.tensor([1.0, 3.0]))
        5.0
    """
    flat = flatten(tensor)
    sums = device_sums(flat, 0.0) if flat.device.type == "cuda" else host_sums(flat.cpu(), 0.0)
    return float(sums[1]) / max(flat.numel(), 1)


def deviation(flat: Tensor, pivot: float, reach: float) -> float:
    """Standard deviation of values that are moved to within ``reach`` of any number ``pivot``."""
    device = flat.device.type == "cuda"
    sums = device_sums(flat, pivot, reach) if device else host_sums(flat.cpu(), pivot, reach)
    distance, square = sums / flat.numel()
    return math.sqrt(max(square - distance * distance, 0.0)) if math.isfinite(square) else math.nan


def surroundings(flat: Tensor) -> tuple[float, float]:
    """(median, distance from it within which 99 in 100 values lie), of a sample of finite values."""
    sample = flat if flat.numel() <= LOOK else flat[scattered(flat.numel(), LOOK).to(flat.device)]
    values = borrowed(sample.to("cpu", torch.float32))
    median = np.partition(values, (values.size - 1) // 2)[(values.size - 1) // 2]
    away = np.abs(values.astype(np.float64) - median)
    place = int(USUAL * (away.size - 1))
    return float(median), float(np.partition(away, place)[place])


def host_sums(flat: Tensor, pivot: float, reach: float = math.inf) -> Floats:
    """Sums of d and of d^2, d = value - pivot held within ``reach``, in host memory: float64[2]."""

    def work(part: slice) -> Floats:
        values, lanes = flat[part].to(torch.float32), np.zeros((2, LANES))
        near = values if reach == math.inf else values.clamp(pivot - reach, pivot + reach)
        kernels.add_moments(borrowed(near), pivot, lanes[0], lanes[1])
        return lanes

    parts = [slice(start, start + CHUNK) for start in range(0, flat.numel(), CHUNK)]
    totals: Floats = np.sum(map_threads(work, parts), axis=0).sum(axis=1)
    return totals


def device_sums(flat: Tensor, pivot: float, reach: float = math.inf) -> Floats:
    """As `host_sums`, on another device."""
    totals = torch.zeros(2, dtype=torch.float64, device=flat.device)
    for part in chunks(flat.numel()):
        distance = (flat[part].to(torch.float32).to(torch.float64) - pivot).clamp(-reach, reach)
        totals += torch.stack((distance.sum(), distance.square().sum()))
    array: Floats = totals.cpu().numpy()
    return array
