"""Plain twins of methods/lattice/moved_kernels.py: one narrow cell at a time."""

from __future__ import annotations


def cells_of(words):
    """The four cells of each word, the first lowest."""
    return [[int(word) >> shift & 255 for shift in (0, 8, 16, 24)] for word in words]


def flag_moves(base, cells, flags):
    for g, (before, now) in enumerate(zip(cells_of(base), cells_of(cells), strict=True)):
        flags[g] = sum((now[j] // 8 != before[j] // 8) * 2**j for j in range(4))
    return count_flags(flags)


def gather_ages(base, ages):
    ages[:] = [sum(cell % 4 * 4**j for j, cell in enumerate(four)) for four in cells_of(base)]


def aged(cell):
    """A cell whose weight stays: its last move, if there was one, is one checkpoint older, up to three."""
    return cell + (cell % 4 in (1, 2))


def age_cells(base, cells):
    cells[:] = [sum(aged(cell) << 8 * j for j, cell in enumerate(four)) for four in cells_of(base)]


def count_flags(flags):
    return sum(flag.bit_count() for flag in flags.tolist())


def places(flags, groups, where):
    where[:-1] = [4 * g + j for g, flag in enumerate(flags.tolist()) for j in range(4) if flag >> j & 1]


def gather_cells(base, where, at):
    at[:] = [base[i] for i in where.tolist()]


def gather_residuals(at, cells, where, residuals, values):
    pairs = [256 * int(before) + int(cells[i]) for before, i in zip(at, where.tolist(), strict=True)]
    values[:] = [int(residuals[pair]) - 1 for pair in pairs]


def move_cells(at, values, where, table, bits, cells):
    seen = 0
    for before, value, i in zip(at.tolist(), values.tolist(), where.tolist(), strict=True):
        beyond, residual = divmod(value + 1, 2**bits)
        entry = int(table[2**bits * before + residual])
        cells[i] = entry % 256
        seen |= entry | 256 * beyond
    return seen


def remember(base, cells):
    for i, (before, now) in enumerate(zip(base.tolist(), cells.tolist(), strict=True)):
        away = now // 8 - before // 8
        cells[i] = now // 8 * 8 + (1 if away > 0 else 5 if away < 0 else aged(before) % 8)
