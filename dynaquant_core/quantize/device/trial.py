"""Whether a device's kernels give the bits of the CPU's, each kind of them tried before its first use.

A checkpoint is measured as its device decodes it and may be loaded on any other, so a compiler's mistake must
not get into one.  Triton compiles a kernel apart for every dtype and switch, for addresses and for sizes that
are multiples of 16; so what was tried of one says nothing of another, and what is tried here is what works
afterwards.  Sizes are tried both ways.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from types import ModuleType
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dynaquant_core.device_jit import fault
from dynaquant_core.quantize import cpu_path
from dynaquant_core.quantize.buckets import BitBuckets, Buckets, LogBuckets
from dynaquant_core.quantize.codebook import lookup
from dynaquant_core.quantize.cut import PROTECTED, Cut
from dynaquant_core.quantize.device import path
from dynaquant_core.quantize.dither_kernels import settle
from dynaquant_core.quantize.lattice import cpu_path as lattice_cpu_path
from dynaquant_core.quantize.lattice import device_path
from dynaquant_core.quantize.lattice.offsets import offsets
from dynaquant_core.quantize.rules import Rules

__all__ = ["Kind", "agrees", "look"]

logger = logging.getLogger(__name__)

_trying = threading.Lock()

#: Several programs of a kernel, the last of which is not full.
SIZES: Final = (2064, 2067)

KEY, STEP = np.uint64(2**64 - 59), np.float32(0.0137)

#: For dithered codes: values, gaps and codes of levels.
LEVELS = tuple(
    np.array(one, dtype)
    for one, dtype in (([-0.5, -0.1, 0.0, 0.4], "f4"), ([0.4, 0.1, 0.4], "f4"), ([2, 3, 0, 4], "u1"))
)

Arrays = list[NDArray[Any]]

#: What Triton compiles a kernel apart for in a tensor: dtype, and whether its address is a multiple of 16.
Look = tuple[torch.dtype, bool]


def look(tensor: Tensor) -> Look:
    """A tensor's `Look`."""
    return tensor.dtype, tensor.data_ptr() % 16 == 0


@dataclass(frozen=True, slots=True)
class Kind:
    """What a kernel is compiled apart for, besides the size.

    Args:
        name: of the side's function that starts it.
        values: of the weights that are read, or written.
        gradient: of the gradient; None: it is not looked at.
        split: whether cells have splits.
        given: whether offsets are given, and not drawn.
    """

    name: str
    values: Look
    gradient: Look | None = None
    split: bool = False
    given: bool = False


def agrees(device: torch.device, kind: Kind) -> bool:
    """Tries a kind of kernels; what it does wrong is logged once, and operations of torch serve then.

    Raises what `device_jit.fault` raises.
    """
    with _trying:
        return _tried(device, kind)


@cache
def _tried(device: torch.device, kind: Kind) -> bool:
    wrong = fault(lambda: None if all(_right(device, kind, size) for size in SIZES) else "other bits")
    if wrong is not None:
        logger.warning(
            "The kernel that codes weights (%s of %s) is not used on %s (%.300s); operations of torch are, "
            "which give the same bits and take several times as long.",
            kind.name,
            kind.values[0],
            device,
            wrong,
        )
    return wrong is None


def _right(device: torch.device, kind: Kind, size: int) -> bool:
    """Whether both sides agree about a sample."""
    attempt, here, there = _ATTEMPTS[kind.name]
    values = sample(0, size).to(kind.values[0])
    gradient = None if kind.gradient is None else sample(1, size).to(kind.gradient[0])
    sent = None if gradient is None or kind.gradient is None else _placed(gradient, device, kind.gradient)
    expected = attempt(here, kind, values, gradient)
    found = attempt(there, kind, _placed(values, device, kind.values), sent)
    return all(np.array_equal(one, other) for one, other in zip(found, expected, strict=True))


def sample(seed: int, size: int) -> Tensor:
    """float32[size]: values of all sizes, zeros of both signs, and such as no symbol reaches."""
    draw = np.random.default_rng(seed)
    values = (0.3 * draw.standard_normal(size)).astype(np.float32)
    values[::5] *= np.float32(10.0) ** draw.integers(-30, 1, values[::5].size).astype(np.float32)
    values[::7], values[3::11], values[5::601] = 0.0, -0.0, 900.0
    return torch.from_numpy(values)


def _placed(values: Tensor, device: torch.device, wanted: Look) -> Tensor:
    """The values on a device, at an address that is a multiple of 16 or is none."""
    start = 0 if wanted[1] else 1
    room = torch.empty(values.numel() + 1, dtype=values.dtype, device=device)
    there = room[start : start + values.numel()]
    there.copy_(values)
    return there


def _buckets(kind: Kind) -> Buckets:
    return LogBuckets(0.01) if kind.split else BitBuckets(6)


def _cut(gradient: Tensor | None) -> Cut:
    return Cut(0.5, prune=0.01) if gradient is None else Cut(0.5, 0.05, 1e-5, "sensitivity")


def _count(side: ModuleType, kind: Kind, values: Tensor, _: Tensor | None) -> Arrays:
    return [side.count(values, _buckets(kind).cells)]


def _score(side: ModuleType, kind: Kind, values: Tensor, gradient: Tensor | None) -> Arrays:
    counts, energy = side.score(values, gradient, _buckets(kind).unsigned().cells)
    return [counts, energy.astype(np.float32)]  # summed in another order


def _joint(side: ModuleType, kind: Kind, values: Tensor, gradient: Tensor | None) -> Arrays:
    buckets, base = _buckets(kind), (np.arange(values.numel()) % 3).astype(np.uint8)
    rows = np.arange(buckets.size)
    rules = Rules.of(_cut(gradient), buckets, rows, pruned=buckets.size, rows=buckets.size + 2)
    return [side.joint(values, gradient, buckets.cells, rules, base, 3)]


def _assign(side: ModuleType, kind: Kind, values: Tensor, gradient: Tensor | None) -> Arrays:
    buckets, codes = _buckets(kind), np.empty(values.numel(), np.uint8)
    rules = Rules.of(_cut(gradient), buckets, lookup(np.linspace(-0.6, 0.6, 14), buckets), pruned=0)
    return [side.assign(values, gradient, buckets.cells, rules, codes), codes]


def _place(side: ModuleType, _: Kind, out: Tensor, __: Tensor | None) -> Arrays:
    codes = (np.arange(out.numel()) * 37 % 256).astype(np.uint8)
    table, exact = (torch.from_numpy(np.arange(float(size))).to(out.dtype) for size in (256, codes.size))
    kept = exact[: int((codes == PROTECTED).sum())]
    side.place(codes, table, kept, out, [(slice(0, codes.size), 0)])
    return [out.double().cpu().numpy()]


def _settle(side: ModuleType, kind: Kind, values: Tensor, _: Tensor | None) -> Arrays:
    size, key = values.numel(), int(KEY)
    codes, drawn = np.where(np.arange(size) % 9, 2, PROTECTED).astype(np.uint8), offsets(key, size)
    if side is cpu_path:
        settle(codes, values.to(torch.float32).numpy(), drawn, *LEVELS)
    else:
        path.settle(values, codes, LEVELS, drawn if kind.given else key)
    return [codes]


def _quantise(side: ModuleType, _: Kind, values: Tensor, __: Tensor | None) -> Arrays:
    symbols = np.empty(values.numel(), np.uint8)
    return [side.quantise(values, STEP, KEY, symbols), symbols]


def _dequantise(side: ModuleType, _: Kind, out: Tensor, __: Tensor | None) -> Arrays:
    symbols = (np.arange(out.numel()) * 37 % 256).astype(np.uint8)
    escapes = 1000 + np.arange(int((symbols == 0).sum()), dtype=np.int32)
    limit = np.float32(min(torch.finfo(out.dtype).max, torch.finfo(torch.float32).max))
    found = []
    for ends in ((-limit, limit), (STEP, limit)):
        side.dequantise(symbols, escapes, STEP, KEY, ends, out, [(slice(0, symbols.size), 0)])
        found.append(out.double().cpu().numpy())
    return found


#: Of each function: what is tried, the side that is right, and the one that is tried.
_ATTEMPTS: Mapping[str, tuple[Callable[..., Arrays], ModuleType, ModuleType]] = {
    "count": (_count, cpu_path, path),
    "score": (_score, cpu_path, path),
    "joint": (_joint, cpu_path, path),
    "assign": (_assign, cpu_path, path),
    "place": (_place, cpu_path, path),
    "settle": (_settle, cpu_path, path),
    "quantise": (_quantise, lattice_cpu_path, device_path),
    "dequantise": (_dequantise, lattice_cpu_path, device_path),
}
