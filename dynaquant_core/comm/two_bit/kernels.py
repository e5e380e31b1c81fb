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


@kernel
def encode(residual: Array, gradient: Array, above: float, below: float, packed: Array) -> None:
    """Adds ``gradient`` to ``residual``, takes out what is sent, and fills ``packed``.

    ``residual``, ``gradient`` float32[4 n]; ``above``, ``below`` float32 above 0; ``packed`` uint8[n].  Where
    the sum is not finite the code is 01 and the residual stays as it was.
    """
    zero = np.float32(0)
    infinity = np.float32(np.inf)
    for byte in range(np.uint64(packed.size)):
        first = np.uint64(4) * byte
        code = np.uint32(0)
        for place in range(np.uint64(4)):
            at = first + place
            before = residual[at]
            held = before + gradient[at]
            finite = abs(held) < infinity
            up = finite and held >= above
            down = finite and held <= -below
            sent = above if up else (-below if down else zero)
            residual[at] = held - sent if finite else before
            own = np.uint32(3) if up else (np.uint32(2) if down else np.uint32(0))
            code = (code << np.uint32(2)) | (own if finite else np.uint32(1))
        packed[byte] = np.uint8(code)


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
