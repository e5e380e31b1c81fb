"""Exponent-based quantisation of a change, and its priority promotion (LC-Checkpoint, arXiv 2009.13003).

Values of one sign and one exponent share a bucket, whose value is (max + min) / 2 of what is in it, so no
normal number is off by more than half of its own magnitude.  Promotion to x bits keeps the 2^x - 1 buckets of
the largest exponents; what is in the others becomes 0.  Codes are ranks: the fullest bucket is code 0.

Example:
    >>> link = quantised(np.float32([1.0, 1.5, -0.25, 0.0]), None)
    >>> link.codes.tolist(), link.steps.tolist()
    ([0, 0, 1, 2], [[1.25, -0.25, -0.0]])
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dynaquant_core.quantize.exponent_kernels import BUCKETS, ZERO, bucket_codes, bucket_ranges
from dynaquant_core.quantize.flat import flatten

__all__ = ["MOST_BUCKETS", "MOST_STEPS", "Link", "advanced", "code_bits", "merged", "quantised", "stage_bits"]

#: Most buckets and most steps of a merged change: a symbol coder's alphabet, and a byte.
MOST_BUCKETS: Final = 1024
MOST_STEPS: Final = 255

#: Added to a number of either sign, zeros included, this leaves every bit of it as it is.
NOTHING: Final = np.float32(-0.0)

Codes = NDArray[Any]


@dataclass(frozen=True, slots=True, eq=False)
class Link:
    """A coded change of a tensor: one step, or several merged into one.

    Args:
        codes: uint8[n], or uint16[n] where there are more than 256 buckets; every code has a bucket.
        steps: float32[m, k], finite: what each of m steps adds to a value of each of k buckets, in turn.
    """

    codes: Codes
    steps: NDArray[np.float32]

    @property
    def buckets(self) -> int:
        """How many there are: k."""
        return int(self.steps.shape[1])

    @property
    def counts(self) -> NDArray[np.int64]:
        """How many values each bucket holds, int64[k]."""
        return np.bincount(self.codes, minlength=self.buckets)


def code_bits(buckets: int) -> int:
    """Bits of a code of fixed width.

    Example:
        >>> code_bits(1), code_bits(5), code_bits(8)
        (0, 3, 3)
    """
    return (buckets - 1).bit_length()


def stage_bits(elements: int, width: int, buckets: int) -> int:
    """Bits after the exponent-based stage alone, by the formula of the paper: n ceil(log2 k) + k b.

    Args:
        elements: n.
        width: b, bits of a value.
        buckets: k.

    Example:
        >>> round(10 * 32 / stage_bits(10, 32, 5), 2)
        1.68
    """
    return elements * code_bits(buckets) + buckets * width


def quantised(change: NDArray[np.float32], bits: int | None) -> Link:
    """Quantises a change by sign and exponent.

    Zeros have a bucket of their own, which stands for exactly 0 and takes in what is not promoted.

    Args:
        change: float32[n], finite.
        bits: x of the priority promotion; None promotes every bucket.
    """
    words = np.ascontiguousarray(change).view(np.uint32)
    counts = np.zeros(BUCKETS, np.int64)
    low, high = np.full(BUCKETS, 0x7FFFFFFF, np.uint32), np.zeros(BUCKETS, np.uint32)
    bucket_ranges(words, counts, low, high)
    kept = _promoted(counts, bits)
    rest = counts.sum() - counts[kept].sum()
    found = [*kept.tolist(), *([ZERO] if rest else [])]
    sizes = np.append(counts[kept], rest)[: len(found)]
    order = np.argsort(-sizes, kind="stable")
    ranked = np.array(found, np.int64)[order]
    table = np.full(BUCKETS, np.flatnonzero(ranked == ZERO)[0] if rest else 0, np.uint16)
    table[ranked] = np.arange(ranked.size)
    codes = np.empty(change.size, _code_dtype(ranked.size))
    bucket_codes(words, table, codes)
    return Link(codes, _middles(ranked, low, high)[None])


def _promoted(counts: NDArray[np.int64], bits: int | None) -> NDArray[np.int64]:
    """Buckets that keep their value, by falling exponent; of the two signs the fuller one first (ours)."""
    used = np.flatnonzero(counts[:ZERO])
    order = np.lexsort((used, -counts[used], -(used & 0xFF)))
    return used[order][: None if bits is None else (1 << bits) - 1]


def _middles(buckets: NDArray[np.int64], low: Codes, high: Codes) -> NDArray[np.float32]:
    """The value of each bucket, from magnitudes as float32 patterns."""
    ends = [part[buckets].view(np.float32).astype(np.float64) for part in (low, high)]
    middle = ((ends[0] + ends[1]) / 2).astype(np.float32)
    signed = np.where(buckets >= 256, -middle, middle)
    return np.where(buckets == ZERO, NOTHING, signed).astype(np.float32)


def _code_dtype(buckets: int) -> type[np.uint8 | np.uint16]:
    return np.uint8 if buckets <= 256 else np.uint16


def advanced(tensor: Tensor, link: Link) -> Tensor:
    """The tensor after a link, flat, in its own dtype, on the CPU.

    Each step adds in float32 (float64 for a float64 tensor), rounds to the dtype, and stops at its largest
    value; where it adds 0 it keeps every bit.

    Args:
        tensor: floating, as many elements as the link has codes, on the CPU.
        link: of a change of this tensor.

    Example:
        >>> advanced(torch.tensor([1.0, 2.0]), quantised(np.float32([0.5, 0.0]), 2))
        tensor([1.5000, 2.0000])
    """
    flat, limit = flatten(tensor), torch.finfo(tensor.dtype).max
    wide = torch.float64 if flat.dtype == torch.float64 else torch.float32
    codes = link.codes.astype(np.intp)
    for row in link.steps:
        moved = flat.to(wide) + torch.from_numpy(row[codes])
        flat = moved.clamp_(-limit, limit).to(flat.dtype)
    return flat


def merged(links: Sequence[Link]) -> Link | None:
    """One link in place of several consecutive ones, to the same bits; None where it would be too large.

    Its buckets are the combinations of theirs that occur, and its steps are all of theirs, so a reader adds
    the same numbers in the same order (a sum would round otherwise).  This is the paper's super step.

    Args:
        links: at least one, of the same number of elements, oldest first.

    Example:
        >>> one = quantised(np.float32([1.0, 0.0, 0.0]), 2)
        >>> merged([one, one]).steps.tolist()
        [[-0.0, 1.0], [-0.0, 1.0]]
    """
    if sum(link.steps.shape[0] for link in links) > MOST_STEPS:
        return None
    return reduce(_paired, links[1:], links[0])  # type: ignore[arg-type]


def _paired(first: Link | None, second: Link) -> Link | None:
    if first is None:
        return None
    joint = first.codes.astype(np.int64) * second.buckets + second.codes
    counts = np.bincount(joint, minlength=first.buckets * second.buckets)
    used = np.flatnonzero(counts)
    if used.size > MOST_BUCKETS:
        return None
    ranked = used[np.argsort(-counts[used], kind="stable")]
    table = np.zeros(counts.size, _code_dtype(ranked.size))
    table[ranked] = np.arange(ranked.size)
    before, after = np.divmod(ranked, second.buckets)
    return Link(table[joint], np.concatenate([first.steps[:, before], second.steps[:, after]]))
