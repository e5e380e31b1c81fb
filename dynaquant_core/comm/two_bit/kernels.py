"""Inner loops of two-bit codes; twins in tests/reference/two_bit_twins.py.

Four codes a byte, the first in the two high bits: 11 is +t, 10 is -t, 00 is nothing, 01 is not finite.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from dynaquant_core.jit import kernel

__all__ = ["decode_sum", "encode"]

Array = NDArray[Any]


#: Brings four codes, a byte each, together in the upper byte of a word, the first code highest.
_TOGETHER = np.uint32(1 << 30 | 1 << 20 | 1 << 10 | 1)
_2, _24 = np.uint64(2), np.uint32(24)


@kernel
def encode(
    residual: Array, gradient: Array, above: float, below: float, codes: Array, words: Array, packed: Array
) -> None:
    """Adds ``gradient`` to ``residual``, takes out what is sent, and fills ``packed``.

    Where the sum is not finite the code is 01 and the residual stays as it was.  A block's codes are made a
    byte each and then packed: two loops of one kind of value each, which every compiler turns into vectors.

    Args:
        residual: float32[4 n], changed.
        gradient: float32[4 n].
        above: float32 above 0, what 11 stands for.
        below: float32 above 0, the size of what 10 stands for.
        codes: uint8[4 m], scratch of a block.
        words: uint32[m], the same memory, the first code of four lowest.
        packed: uint8[n], written.
    """
    zero = np.float32(0)
    infinity = np.float32(np.inf)
    block = np.uint64(codes.size)
    for start in range(np.uint64(0), np.uint64(residual.size), block):
        waiting, new = residual[start : start + block], gradient[start : start + block]
        for i in range(np.uint64(waiting.size)):
            before = waiting[i]
            held = before + new[i]
            finite = abs(held) < infinity
            up = held >= above
            down = held <= -below
            sent = above if up else (-below if down else zero)
            waiting[i] = held - sent if finite else before
            own = np.uint8(3) if up else (np.uint8(2) if down else np.uint8(0))
            codes[i] = own if finite else np.uint8(1)
        out = packed[start >> _2 : (start + block) >> _2]
        for i in range(np.uint64(out.size)):
            out[i] = np.uint8((words[i] * _TOGETHER) >> _24)


@kernel
def decode_sum(gathered: Array, table: Array, divisor: float, out: Array) -> None:
    """Fills ``out`` with the senders' decoded values, added up in their order, over ``divisor``.

    ``gathered`` uint8[senders, n]; ``table`` float32[4], the value of each code; ``divisor`` float32;
    ``out`` float32[4 n].
    """
    for byte in range(np.uint64(gathered.shape[1])):
        a = b = c = d = np.float32(0)
        for sender in range(np.uint64(gathered.shape[0])):
            code = np.uint64(gathered[sender, byte])
            a += table[code >> np.uint64(6)]
            b += table[(code >> np.uint64(4)) & np.uint64(3)]
            c += table[(code >> np.uint64(2)) & np.uint64(3)]
            d += table[code & np.uint64(3)]
        first = np.uint64(4) * byte
        out[first] = a / divisor
        out[first + np.uint64(1)] = b / divisor
        out[first + np.uint64(2)] = c / divisor
        out[first + np.uint64(3)] = d / divisor
