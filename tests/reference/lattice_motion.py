"""Plain twins of methods/lattice/motion_kernels.py: one weight at a time, in the words of the format."""

from __future__ import annotations

import numpy as np


def outside(symbols, middle, most):
    return sum(abs(int(symbol) - middle) > most for symbol in symbols)


def narrow(symbols, middle, zero):
    for i, symbol in enumerate(symbols.tolist()):
        k = symbol - int(middle)
        symbols[i] = (k + int(zero)) * 8 if abs(k) < zero else 0


def widen(cells, middle, zero, symbols):
    symbols[:] = [cell // 8 - zero + middle for cell in cells.tolist()]


def look_up(keys, table, out):
    out[:] = table[keys]


def look_up_pairs(first, second, bits, table, out):
    out[:] = [
        table[left * 2**bits + right] for left, right in zip(first.tolist(), second.tolist(), strict=True)
    ]
    return np.bitwise_or.reduce(out, initial=0)


def history_of(before, i):
    """(age, whether the last move was upwards) of a weight in the base."""
    history = int(before[i if before.size > 1 else 0]) % 8
    return history % 4, history < 4


def aim_at(values, offsets, step, most, histories, first, contexts, aims):
    with np.errstate(all="ignore"):
        x = values / np.float32(step) - offsets
        x = np.where(np.abs(x) < np.float32(2**30), x, np.float32(0))
    k = np.rint(x)
    place = x - k
    up = place >= 0
    border = np.maximum(np.float32(0.5) - np.abs(place), np.float32(0))
    bucket = np.minimum((np.float32(20) * np.sqrt(np.float32(2) * border)).astype(np.int64), 19)
    for i in range(values.size):
        age, rose = history_of(histories, i)
        relation = 0 if age == 0 else age if rose == up[i] else 3 + age
        contexts[i] = first + 7 * bucket[i] + relation
        aims[i] = 2 * min(max(int(k[i]), -most), most) + bool(up[i])


def aimed(aim):
    """(k that is expected, whether up is the likelier way)."""
    return int(aim) // 2, int(aim) % 2 == 1


def fold(cells, shift, zero, aims, out):
    for i, cell in enumerate(cells.tolist()):
        expected, up = aimed(aims[i])
        away = cell // 2**shift - zero - expected
        ahead = away if up else -away
        out[i] = 2 * ahead - 1 if ahead > 0 else -2 * ahead
    return int(np.count_nonzero(out))


def unfold(residuals, shift, zero, aims, cells):
    wrong = 0
    for i, folded in enumerate(residuals.tolist()):
        expected, up = aimed(aims[i])
        ahead = (folded + 1) // 2 if folded % 2 else -(folded // 2)
        cell = expected + (ahead if up else -ahead) + zero
        exists = 0 <= cell < 2 * zero
        cells[i] = cell * 2**shift if exists else 0
        wrong += not exists
    return wrong


def write_history(cells, aims, zero, before):
    for i, cell in enumerate(cells.tolist()):
        age, rose = history_of(before, i)
        away = cell // 8 - zero - aimed(aims[i])[0]
        if away:
            age, rose = 1, away > 0
        elif age:
            age = min(age + 1, 3)
        else:
            rose = int(before[i if before.size > 1 else 0]) % 8 < 4
        cells[i] = cell // 8 * 8 + age + (0 if rose else 4)
