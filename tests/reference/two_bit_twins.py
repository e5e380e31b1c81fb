"""Plain twins of the kernels of two-bit codes."""

from __future__ import annotations

import numpy as np


def encode(residual, gradient, above, below, packed):
    with np.errstate(all="ignore"):
        held = residual + gradient
        finite = np.isfinite(held)
        up, down = finite & (held >= above), finite & (held <= -below)
        sent = np.where(up, above, np.where(down, -below, np.float32(0)))
        residual[:] = np.where(finite, held - sent, residual)
    fours = np.where(up, 3, np.where(down, 2, np.where(finite, 0, 1))).reshape(-1, 4)
    packed[:] = fours @ np.array([64, 16, 4, 1])


def decode_sum(gathered, table, divisor, out):
    total = np.zeros((gathered.shape[1], 4), np.float32)
    with np.errstate(all="ignore"):
        for row in gathered:
            total += table[(row[:, None] >> np.array([6, 4, 2, 0])) & 3]
        out[:] = (total / divisor).reshape(-1)
