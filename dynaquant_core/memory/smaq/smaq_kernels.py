"""Compiled loops of SmaQ in host memory; all work on one chunk.  Twins in tests/reference/smaq_twins.py."""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
from numpy.typing import NDArray

from dynaquant_core.jit import kernel
from dynaquant_core.quantize.lattice.offset_kernels import fill_halves

__all__ = ["classify", "read_chunk", "settle", "write_chunk"]

Array = NDArray[Any]
inline = numba.njit(nogil=True, inline="always")

ZERO, ONE, EIGHT = np.uint64(0), np.uint64(1), np.uint64(8)

#: A draw of 16 bits as one of 65536 values evenly inside (0, 1), exact in float32.
UNIT, HALF_UNIT = np.float32(2.0**-16), np.float32(2.0**-17)
NONE = np.float32(0)


@kernel
def classify(values: Array, mean: Any, inverse: Any, box: Any, mask: Array) -> Any:
    """Sets the bits of outliers in ``mask`` uint8[ceil(n / 8)] and returns how many there are.

    ``values`` float32[n]; ``mean``, ``inverse`` = 1 / std and ``box`` float32.
    """
    size, count = np.uint64(values.size), ZERO
    for byte in range(np.uint64(mask.size)):
        bits, first = ZERO, byte * EIGHT
        for place in range(min(EIGHT, size - first)):
            outside = np.uint64(abs((values[first + place] - mean) * inverse) > box)
            bits |= outside << place
            count += outside
        mask[byte] = np.uint8(bits)
    return count


@inline
def inner_code(z: Any, draw: Any, box: Any, scale: Any, last: Any) -> Any:
    """Level inside the box, drawn from the two around z; of any z a valid one."""
    return np.uint8(min(max((z + box) * scale + draw, NONE), last))


@inline
def outer_code(z: Any, draw: Any, box: Any, limit: Any, scale: Any, last: Any, sign: Any) -> Any:
    """Level outside, drawn from the two around |z|, with the sign; of any z a valid one."""
    level = min(max((min(abs(z), limit) - box) * scale + draw, NONE), last)
    return np.uint8(level) | (sign * np.uint8(z < NONE))


@inline
def pack_run(codes: Array, count: Any, width: Any, out: Array) -> None:
    """Packs the codes in groups of eight, which take ``width`` bytes; the last group is filled with 0."""
    groups = (count + EIGHT - ONE) // EIGHT
    for i in range(count, groups * EIGHT):
        codes[i] = np.uint8(0)
    for group in range(groups):
        word = ZERO
        for i in range(EIGHT):
            word |= np.uint64(codes[group * EIGHT + i]) << (width * i)
        for i in range(width):
            out[group * width + i] = np.uint8(word >> (EIGHT * i))


@inline
def unpack_run(packed: Array, count: Any, width: Any, codes: Array) -> None:
    """Undoes `pack_run`; ``codes`` has room for whole groups."""
    low = (ONE << width) - ONE
    for group in range((count + EIGHT - ONE) // EIGHT):
        word = ZERO
        for i in range(width):
            word |= np.uint64(packed[group * width + i]) << (EIGHT * i)
        for i in range(EIGHT):
            codes[group * EIGHT + i] = np.uint8((word >> (width * i)) & low)


@kernel
def write_chunk(
    values: Array,
    mean: Any,
    inverse: Any,
    geometry: Any,
    widths: Any,
    key: Any,
    start: Any,
    words: Array,
    halves: Array,
    insides: Array,
    outsides: Array,
    inner: Array,
    outer: Array,
) -> None:
    """Draws the codes of float32[n] and packs inliers into ``inner`` and outliers into ``outer``, uint8.

    ``geometry`` is `levels.Geometry`, ``widths`` the two code widths as uint64; ``key`` and ``start`` uint64
    name the draws; ``words`` and ``halves`` are scratch of `fill_halves`, ``insides`` and ``outsides``
    uint8[n rounded up to 8] scratch for the codes.
    """
    box, limit, inner_scale, inner_last, outer_scale, outer_last, sign = geometry
    size, inlying, outlying = np.uint64(values.size), ZERO, ZERO
    skip = fill_halves(key, start, size, words)
    for i in range(size):  # both codes of every value: a loop that compilers turn into vectors
        z = (values[i] - mean) * inverse
        draw = np.float32(halves[skip + i]) * UNIT + HALF_UNIT
        insides[i] = inner_code(z, draw, box, inner_scale, inner_last)
        outsides[i] = outer_code(z, draw, box, limit, outer_scale, outer_last, sign)
    for i in range(size):  # the one that counts moves up; what it lands on was read before
        outside = np.uint64(abs((values[i] - mean) * inverse) > box)
        insides[inlying] = insides[i]
        outsides[outlying] = outsides[i]
        outlying += outside
        inlying += ONE - outside
    pack_run(insides, inlying, widths[0], inner)
    pack_run(outsides, outlying, widths[1], outer)


@kernel
def read_chunk(
    mask: Array,
    inner: Array,
    outer: Array,
    outliers: Any,
    widths: Any,
    inner_table: Array,
    outer_table: Array,
    insides: Array,
    outsides: Array,
    out: Array,
) -> None:
    """Undoes `classify` and `write_chunk` into ``out`` float32[n]; tables as `Levels.tables` makes them."""
    size = np.uint64(out.size)
    unpack_run(inner, size - outliers, widths[0], insides)
    unpack_run(outer, outliers, widths[1], outsides)
    inlying, outlying = ZERO, ZERO
    for i in range(size):
        outside = (np.uint64(mask[i // EIGHT]) >> (i % EIGHT)) & ONE
        # Either index may be one past its run; the scratch has room for it, and its value is not taken.
        near = inner_table[insides[inlying] & np.uint8(inner_table.size - 1)]
        far = outer_table[outsides[outlying] & np.uint8(outer_table.size - 1)]
        out[i] = far if outside else near
        outlying += outside
        inlying += ONE - outside


@kernel
def settle(
    values: Array,
    mean: Any,
    inverse: Any,
    geometry: Any,
    key: Any,
    start: Any,
    words: Array,
    halves: Array,
    inner_table: Array,
    outer_table: Array,
    out: Array,
) -> Any:
    """What `read_chunk` gives of what `write_chunk` wrote, without packing; returns the outliers."""
    box, limit, inner_scale, inner_last, outer_scale, outer_last, sign = geometry
    size, outlying = np.uint64(values.size), ZERO
    skip = fill_halves(key, start, size, words)
    for i in range(size):
        z = (values[i] - mean) * inverse
        draw = np.float32(halves[skip + i]) * UNIT + HALF_UNIT
        outside = abs(z) > box
        near = inner_table[inner_code(z, draw, box, inner_scale, inner_last)]
        far = outer_table[outer_code(z, draw, box, limit, outer_scale, outer_last, sign)]
        out[i] = far if outside else near
        outlying += np.uint64(outside)
    return outlying
