"""Groups of symbols as run lengths under Huffman codes: the coder of paper sec. 6.

Each group has a code of its own where that pays for its table, else all such groups share one.  The bits of
all groups follow each other without gaps; the sizes of the groups are the decoder's to know.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dynaquant_core.coding.codec import MAX_LEVELS, Array, Buffer
from dynaquant_core.coding.prefix import as_windows, code_entries, code_lengths, decoding_table
from dynaquant_core.coding.prefix_kernels import pack, unpack_runs
from dynaquant_core.coding.rle import RUN_CAP, expected_histogram, histogram, tokens
from dynaquant_core.coding.tables import TableReader, TableWriter
from dynaquant_core.coding.wire import as_view
from dynaquant_core.errors import CorruptFileError

__all__ = ["decode_groups", "encode_groups", "expected_bytes"]

_LEVEL_BITS, _TOKEN_BITS = 10, 11

Histogram = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class _Plan:
    """Which code each group uses: codes[which[group]]; code 0 is the shared one."""

    levels: int
    which: list[int]
    codes: list[NDArray[np.uint8]]

    def tables(self) -> TableWriter:
        writer = TableWriter()
        writer.number(self.levels - 1, bits=_LEVEL_BITS)
        writer.number(self.codes[0].size - 1, bits=_TOKEN_BITS)
        for which in self.which:
            writer.number(int(which > 0), bits=1)
        for number, code in enumerate(self.codes):
            if number or 0 in self.which:
                writer.lengths(code)
        return writer


def _table_bits(code: NDArray[np.uint8]) -> float:
    writer = TableWriter()
    writer.lengths(code)
    return writer.bits - 24.0


def _plan(histograms: Sequence[Histogram], levels: int) -> _Plan:
    """A code of its own for each group that it saves more than its table costs."""
    together: Histogram = np.sum(histograms, axis=0)
    top = int(np.flatnonzero(together)[-1]) + 1
    together = together[:top]
    if len(histograms) == 1:
        return _Plan(levels, [0], [code_lengths(together)])
    shared = code_lengths(together)
    which, codes = [], [shared]
    for found in histograms:
        own = code_lengths(found[:top])
        saved = int(found[:top] @ shared) - int(found[:top] @ own)
        which.append(len(codes) if saved > 0 and saved > _table_bits(own) else 0)
        if which[-1]:
            codes.append(own)
    rest = [found[:top] for found, code in zip(histograms, which, strict=True) if code == 0]
    codes[0] = code_lengths(np.sum(rest, axis=0)) if rest else shared
    return _Plan(levels, which, codes)


def _body_bits(plan: _Plan, histograms: Sequence[Histogram]) -> int:
    top = plan.codes[0].size
    return sum(
        int(found[:top] @ plan.codes[code].astype(np.int64))
        for found, code in zip(histograms, plan.which, strict=True)
    )


def encode_groups(groups: Sequence[Array], levels: int) -> bytes:
    """Encodes groups of symbols below ``levels``; the decoder must know each group's size.

    Args:
        groups: uint8 or uint16 arrays, none empty, at least one.
        levels: 1 to `MAX_LEVELS`.
    """
    found = [tokens(group) for group in groups]
    histograms = [histogram(part, levels) for part in found]
    plan = _plan(histograms, levels)
    top = plan.codes[0].size
    entries = np.concatenate([code_entries(code) for code in plan.codes])
    places = np.concatenate(
        [
            part.astype(np.int32) + (levels - 1 + which * top)
            for part, which in zip(found, plan.which, strict=True)
        ]
    )
    out = np.empty(_body_bits(plan, histograms) // 8 + 16, np.uint8)
    return plan.tables().finish() + out[: pack(places, entries, out, 0)].tobytes()


def decode_groups(payload: Buffer, out: Array, sizes: Sequence[int], codec: str) -> int:
    """Fills ``out`` with the groups one after the other; returns the number of levels announced.

    Args:
        payload: what `encode_groups` returned.
        out: uint8 or uint16[sum of sizes].
        sizes: of the groups, each above 0.
        codec: named in errors.

    Raises:
        CorruptFileError: the payload is not that of such groups.
    """
    tables = TableReader(payload, codec)
    levels = tables.number(bits=_LEVEL_BITS) + 1
    top = tables.number(bits=_TOKEN_BITS) + 1
    if levels > (256 if out.dtype == np.uint8 else MAX_LEVELS) or top > levels + RUN_CAP:
        raise CorruptFileError(
            f"A {codec} stream announces {levels} levels and {top} tokens, which do not fit {out.dtype}; "
            "load another checkpoint."
        )
    own = [tables.number(bits=1) for _ in sizes]
    shared = decoding_table(np.ones(1, np.uint8) if all(own) else tables.lengths(top))
    codes = [tables.lengths(top) if flag else None for flag in own]
    body = as_view(payload)[tables.end :]
    windows, end, at, begin = as_windows(body), 8 * body.nbytes, 0, 0
    for size, code in zip(sizes, codes, strict=True):
        # Made one at a time: a hostile stream may ask for many.
        table, longest = shared if code is None else decoding_table(code)
        at = int(unpack_runs(out[begin : begin + size], table, longest, levels, windows, at, end))
        begin += size
        if at < 0:
            break
    if at < 0 or not 0 <= end - at < 8:
        raise CorruptFileError(
            f"A {codec} stream does not end where its symbols do; load another checkpoint."
        )
    return levels


def _whole(expected: NDArray[np.float64]) -> Histogram:
    """Expected counts as whole numbers of the same sum; at least one, since no group is empty."""
    found: Histogram = np.diff(np.floor(np.cumsum(expected) + 0.5), prepend=0.0).astype(np.int64)
    if not found.any():
        found[int(expected.argmax())] = 1
    return found


def expected_bytes(counts: NDArray[np.int64]) -> int:
    """Predicted size of `encode_groups` for memoryless groups with these counts, int64[groups, levels]."""
    used = counts[counts.any(axis=1)]
    if not used.size:
        return 0
    histograms = [_whole(expected_histogram(row)) for row in used]
    plan = _plan(histograms, counts.shape[1])
    return int((plan.tables().bits + _body_bits(plan, histograms)) / 8) + 2
