"""The one seam between tensors and counts or codes; everything above it never asks where a tensor lives.

Each function has two sides with identical results: kernels over threads for tensors in host memory
(`cpu_path`), tensor operations for all others (`torch_path`).  Tensors may be float32, bfloat16, float16 or
float64 (rounded to float32), of any shape, contiguous or not; they are read, never written.
"""

from __future__ import annotations

from itertools import accumulate
from types import ModuleType
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dynaquant_core import device_jit
from dynaquant_core.errors import ConfigError, CorruptFileError, StateMismatchError, UnsupportedStateError
from dynaquant_core.quantize import cpu_path, torch_path
from dynaquant_core.quantize.buckets import Buckets
from dynaquant_core.quantize.cut import PROTECTED, Cut
from dynaquant_core.quantize.flat import FLOATS, as_matching, flatten
from dynaquant_core.quantize.rules import Rules
from dynaquant_core.quantize.tally import Tally

__all__ = ["Tally", "assign", "gather", "histogram", "score_histogram", "tally"]


#: Codes that a thread decodes at a time.
PIECE = 1 << 20


def side(tensor: Tensor) -> ModuleType:
    """The side of the seam that serves the tensor's device."""
    if tensor.device.type == "cpu":
        return cpu_path
    if not device_jit.compiles(tensor.device):
        return torch_path
    from dynaquant_core.quantize.device import tried

    return tried


def histogram(values: Tensor, buckets: Buckets) -> NDArray[np.int64]:
    """Counts a tensor's values by bucket (paper A.1).

    Returns:
        int64[size].

    Raises:
        UnsupportedStateError: the tensor is not floating, or holds infinities or NaN.

    Example:
        >>> from dynaquant_core.quantize.buckets import BitBuckets
        >>> counts = histogram(torch.tensor([0.0, 0.5, 0.5]), BitBuckets(6, signed=False))
        >>> counts[counts > 0].tolist()
        [1, 2]
    """
    flat = flatten(values)
    cells = buckets.cells
    counts = side(flat).count(flat, cells)
    bad = cells.non_finite(counts)
    if bad:
        raise UnsupportedStateError(
            f"quantize: {bad} of {flat.numel()} values are infinite or NaN in float32; keep the tensor exact."
        )
    return cells.fold(counts, buckets.size)


def score_histogram(
    values: Tensor, gradient: Tensor, buckets: Buckets
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Counts sensitivities |g w| by bucket, and the energy of the weights that have them (paper 4.1).

    Args:
        values: the weights.
        gradient: EMA of their gradient, of as many elements.
        buckets: unsigned buckets; scores that are infinite or NaN count in the last one.

    Returns:
        (int64[size] counts, float64[size] sums of w^2).

    Raises:
        StateMismatchError: the gradient has another number of elements.
        UnsupportedStateError: a tensor is not floating.

    Example:
        >>> from dynaquant_core.quantize.buckets import BitBuckets
        >>> weights, gradient = torch.tensor([2.0, -3.0]), torch.tensor([0.5, 0.0])
        >>> counts, energy = score_histogram(weights, gradient, BitBuckets(6, signed=False))
        >>> energy[counts > 0].tolist()
        [9.0, 4.0]
    """
    flat = flatten(values)
    cells = buckets.cells
    counts, energy = side(flat).score(flat, as_matching(gradient, flat), cells)
    return cells.fold(counts, buckets.size), cells.fold_energy(energy, buckets.size)


def tally(
    values: Tensor,
    gradient: Tensor | None,
    cut: Cut,
    buckets: Buckets,
    base_codes: NDArray[np.uint8] | None = None,
    base_levels: int = 1,
    *,
    counts: NDArray[np.int64] | None = None,
) -> Tally:
    """Counts what a cut leaves of a tensor, jointly with its codes in the base.

    Args:
        values: the weights.
        gradient: EMA of their gradient; untouched, and may be None, unless ``cut.needs_gradient``.
        cut: thresholds.
        buckets: signed buckets.
        base_codes: uint8[n], the base's code of each weight; None: no base, one column.
        base_levels: number of levels of the base.
        counts: the tensor's own `histogram`, where it is at hand; saves a pass.

    Returns:
        A `Tally`; `Tally.by_level` is then exactly the joint histogram of the codes that `assign` gives.

    Raises:
        ConfigError: the cut needs a gradient and there is none.
        StateMismatchError: gradient or base codes do not fit the tensor.
    """
    flat = flatten(values)
    slope = needed_gradient(gradient, cut, flat)
    base, levels = checked_base(base_codes, base_levels, flat.numel())
    counts = histogram(values, buckets) if counts is None else counts
    kept = ~(cut.pruned(buckets) | cut.protected(buckets))
    used = np.flatnonzero((counts > 0) & kept)
    if slope is None and levels == 1:
        protected = int(counts[cut.protected(buckets)].sum())
        pruned = int(counts.sum() - counts[used].sum()) - protected
        return Tally(used, counts[used, None], np.array([pruned]), np.array([protected]))
    survivors = np.full(buckets.size, used.size, dtype=np.int64)
    survivors[used] = np.arange(used.size)
    rules = Rules.of(cut, buckets, survivors, pruned=used.size, rows=used.size + 2)
    joint = side(flat).joint(flat, slope, buckets.cells, rules, base, levels)
    filled = joint[: used.size].any(axis=1)
    return Tally(used[filled], joint[: used.size][filled], joint[used.size], joint[used.size + 1])


def assign(
    values: Tensor,
    gradient: Tensor | None,
    cut: Cut,
    lookup: NDArray[np.uint8],
    buckets: Buckets,
    *,
    out: NDArray[np.uint8] | None = None,
) -> tuple[NDArray[np.uint8], NDArray[np.uint16]]:
    """Codes a tensor in one pass: 0 pruned, 1 protected, else the level of the weight's bucket.

    Args:
        values: the weights.
        gradient: EMA of their gradient; untouched, and may be None, unless ``cut.needs_gradient``.
        cut: thresholds.
        lookup: uint8[size], level of each bucket (`codebook.lookup`).
        buckets: signed buckets.
        out: uint8[n], where the codes go; None: into memory of their own.

    Returns:
        (codes uint8[n], bfloat16 bit patterns uint16[m] of the protected weights in order), in host memory.

    Raises:
        ConfigError: the cut needs a gradient and there is none, or the lookup is for other buckets.
        StateMismatchError: the gradient does not fit the tensor.

    Example:
        >>> from dynaquant_core.quantize.buckets import BitBuckets
        >>> from dynaquant_core.quantize.codebook import lookup
        >>> buckets = BitBuckets(6)
        >>> levels = lookup(np.array([-1.0, 1.0]), buckets)
        >>> cut = Cut(protect_magnitude=4.0, prune=0.1)
        >>> codes, protected = assign(torch.tensor([-0.9, 0.01, 1.1, 8.0]), None, cut, levels, buckets)
        >>> codes.tolist(), [hex(pattern) for pattern in protected]
        ([2, 0, 3, 1], ['0x4100'])
    """
    flat = flatten(values)
    slope = needed_gradient(gradient, cut, flat)
    if lookup.dtype != np.uint8 or lookup.shape != (buckets.size,):
        raise ConfigError(
            f"quantize: expected a lookup uint8[{buckets.size}], got {lookup.dtype}{list(lookup.shape)}; "
            "build it with codebook.lookup for the same buckets."
        )
    rules = Rules.of(cut, buckets, lookup, pruned=0)
    codes = np.empty(flat.numel(), dtype=np.uint8) if out is None else out
    return codes, side(flat).assign(flat, slope, buckets.cells, rules, codes)


def gather(
    codes: NDArray[np.uint8], table: NDArray[np.float32], protected: NDArray[np.uint16], out: Tensor
) -> None:
    """Decodes codes into a tensor, on its device and in its dtype.

    Args:
        codes: uint8[n].
        table: float32[levels], value of each level (`codebook.table`).
        protected: uint16[m], bfloat16 bit patterns of the weights whose code is 1, in order.
        out: any floating tensor of n elements; values beyond its range become its largest finite ones.

    Raises:
        CorruptFileError: a code has no level, the protected weights are not as many as ones among the codes,
            or one of them is not finite.  ``out`` is then untouched.
        StateMismatchError: ``out`` has another number of elements, or is not floating.

    Example:
        >>> out = torch.empty(3)
        >>> gather(np.array([0, 2, 1], dtype=np.uint8), np.array([0, 0, 0.5], dtype=np.float32),
        ...        np.array([0x3F80], dtype=np.uint16), out)
        >>> out.tolist()
        [0.0, 0.5, 1.0]
    """
    parts = [slice(start, start + PIECE) for start in range(0, codes.size, PIECE)]
    kept = [int(np.count_nonzero(codes[part] == PROTECTED)) for part in parts]
    refuse_bad_codes(int(codes.max()) if codes.size else -1, sum(kept), table, protected)
    if out.numel() != codes.size or out.dtype not in FLOATS:
        raise StateMismatchError(
            f"quantize: {codes.size} codes cannot be decoded into a tensor of {out.dtype} and shape "
            f"{tuple(out.shape)}; expected as many floating elements."
        )
    target = out.detach()
    flat = (target if target.is_contiguous() else target.new_empty(target.shape)).view(-1)
    padded = np.zeros(256, dtype=np.float32)
    padded[: table.size] = table
    exact = (protected.astype(np.uint32) << np.uint32(16)).view(np.float32)
    pieces = list(zip(parts, accumulate(kept, initial=0), strict=False))
    side(flat).place(codes, as_dtype(padded, flat.dtype), as_dtype(exact, flat.dtype), flat, pieces)
    if not target.is_contiguous():
        target.copy_(flat.view(target.shape))


def as_dtype(values: NDArray[np.float32], dtype: torch.dtype) -> Tensor:
    """Values rounded to a dtype, none to infinity."""
    largest = min(torch.finfo(dtype).max, torch.finfo(torch.float32).max)
    return torch.from_numpy(values).clamp(-largest, largest).to(dtype)


def needed_gradient(gradient: Tensor | None, cut: Cut, flat: Tensor) -> Tensor | None:
    """The flat gradient where the cut needs one, else None."""
    if not cut.needs_gradient:
        return None
    if gradient is None:
        raise ConfigError(
            "quantize: a rule on sensitivity is on but there is no gradient; "
            "collect gradients or prune and protect by magnitude only."
        )
    return as_matching(gradient, flat)


def checked_base(
    base_codes: NDArray[np.uint8] | None, base_levels: int, size: int
) -> tuple[NDArray[np.uint8], int]:
    """Base codes (zeros without a base) and their number of levels; kernels rely on code < levels."""
    if base_codes is None:
        return np.zeros(size, dtype=np.uint8), 1
    highest = int(base_codes.max()) if base_codes.size else 0
    if base_codes.dtype != np.uint8 or base_codes.shape != (size,) or highest >= base_levels:
        raise StateMismatchError(
            f"quantize: base codes {base_codes.dtype}{list(base_codes.shape)} up to {highest} do not fit a "
            f"tensor of {size} elements and {base_levels} levels; write a key checkpoint instead."
        )
    return np.ascontiguousarray(base_codes), base_levels


def refuse_bad_codes(highest: int, kept: int, table: NDArray[Any], protected: NDArray[Any]) -> None:
    """Raises CorruptFileError unless codes (the highest, and how many are kept), table and weights agree."""
    if highest >= table.size:
        raise CorruptFileError(f"quantize: code {highest} has no level, expected codes below {table.size}.")
    if kept != protected.size:
        raise CorruptFileError(
            f"quantize: {kept} codes say protected, found {protected.size} values for them."
        )
    if ((protected & np.uint16(0x7F80)) == 0x7F80).any():
        raise CorruptFileError("quantize: a protected weight is infinite or NaN, expected finite ones only.")
