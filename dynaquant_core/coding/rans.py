"""rANS with static tables: order 0, or conditioned on a context symbol (the previous code).

The stream is one sequence of 16-bit words: state 0, the tables (decoded from state 0), with four states the
other three, then the symbols' words.  Sharing the state with its tables, a small stream pays about 3 bytes
beside its information.  Source: ours; rANS is Duda's (arXiv 1311.2540).

Example:
    >>> import numpy as np
    >>> from dynaquant_core.coding.rans import RansContext
    >>> before = np.tile(np.arange(16, dtype=np.uint8), 1000)
    >>> now = before.copy(); now[::160] += 1
    >>> payload = RansContext().encode(now, before)
    >>> out = np.empty_like(now)
    >>> RansContext().decode(payload, out, before)
    >>> len(payload) < 80 and bool((out == now).all())
    True
"""

from __future__ import annotations

# ruff: noqa: ARG002 - the protocol hands every codec a context
from collections.abc import Callable
from functools import partial

import numpy as np
from numpy.typing import NDArray

from dynaquant_core.coding.codec import MAX_LEVELS, Array, Buffer
from dynaquant_core.coding.counts import (
    check_context,
    check_output,
    check_symbols,
    joint_counts,
    symbol_counts,
)
from dynaquant_core.coding.rans_decode_kernels import (
    ALONE_BITS,
    CELL_BITS,
    decode_alone,
    decode_often,
    decode_seldom,
    fill_table,
)
from dynaquant_core.coding.rans_kernels import encode, fill_widths
from dynaquant_core.coding.rans_model import Model, fit, read, slot_bits
from dynaquant_core.coding.tables_kernels import push_slots
from dynaquant_core.coding.wire import as_view, expect_context, expect_size
from dynaquant_core.errors import CorruptFileError, TruncatedError

__all__ = ["Rans", "RansContext", "rans_bytes"]

Counts = NDArray[np.int64]

#: A longer context is counted at every eighth symbol only.
_SAMPLED_FROM, _STEP = 1 << 18, 8
#: Symbols a word from which on words are seldom wanted: 1.5 bits a symbol.
_SELDOM = 10
#: Every state begins here when encoding, so it must end here when decoding.
_START = 1 << 16


def rans_bytes(joint: Counts) -> int:
    """Predicted payload size for symbols with these counts, int64[contexts, levels], tables included.

    Exact to a few bytes: the tables are made and only their use is not carried out.
    """
    if not joint.any():
        return 0
    model = fit(joint)
    bits = model.data_bits(joint) + slot_bits(model.slots)
    return 2 * round((bits / 8 + 3 * model.lanes) / 2)


def _sample(context: Array) -> Counts | None:
    """Roughly how often each context occurs, where counting every one would take a sixth of the decoding."""
    return None if context.size < _SAMPLED_FROM else _STEP * symbol_counts(context, _STEP)


def _count(context: Array, sampled: bool) -> Counts:
    """What `fit` took for the sums of its rows."""
    counts = _sample(context) if sampled else None
    return symbol_counts(context) if counts is None else counts


def _bulk(n: int, model: Model) -> int:
    return n - n % 4 if model.lanes == 4 else 0


def _encode(values: Array, context: Array | None, joint: Counts) -> bytes:
    if values.size == 0:
        return b""
    model = fit(joint, None if context is None else _sample(context))
    packed = np.empty(joint.size, np.uint32)
    inverse = np.empty(joint.size, np.uint64)
    fill_widths(model.starts.ravel(), joint.shape[0], model.levels, packed, inverse)
    contexts = np.zeros(values.size, np.uint8) if context is None else context
    reserve = model.slots.size + 16  # no decision gives more than one word
    expected = int(model.data_bits(joint) / 16 * 1.01) + 64
    for capacity in (expected, values.size + 8):
        words = np.empty(reserve + capacity, np.uint16)
        lanes = np.full(4, _START, np.uint64)
        top = encode(
            values, contexts, model.levels, packed, inverse, _bulk(values.size, model), lanes, words[reserve:]
        )
        if top >= 0:
            break
    return _finish(model, lanes, words, reserve + int(top))


def _finish(model: Model, lanes: NDArray[np.uint64], words: NDArray[np.uint16], top: int) -> bytes:
    """Puts the other states, the tables and state 0 before the words."""
    for lane in range(model.lanes - 1, 0, -1):
        top = _put_state(words, top, lanes[lane])
    first = np.array([lanes[0], 0, 0], np.uint64)
    top = push_slots(model.slots, model.slots.size, first, words, top)
    top = _put_state(words, top, first[0])
    return words[top:].astype("<u2", copy=False).tobytes()


def _put_state(words: NDArray[np.uint16], top: int, state: np.uint64) -> int:
    words[top - 2], words[top - 1] = int(state) >> 16, int(state) & 0xFFFF
    return top - 2


def _words(payload: Buffer) -> tuple[NDArray[np.uint16], int]:
    """The payload's words, followed by four of padding, and how many there are."""
    size = as_view(payload).nbytes
    if size % 2 or size < 4:
        raise TruncatedError(
            f"A rANS stream holds {size} bytes, expected an even number from 4 on; load another checkpoint."
        )
    words = np.zeros(size // 2 + 4, np.uint16)
    words[:-4] = np.frombuffer(payload, "<u2")
    return words, size // 2


def _take_state(words: NDArray[np.uint16], position: int) -> int:
    return int(words[position]) << 16 | int(words[position + 1])


def _decode(payload: Buffer, out: Array, contexts: Array | None, count: Callable[[bool], Counts]) -> None:
    words, limit = _words(payload)
    lane = np.array([_take_state(words, 0), 2, 0], np.uint64)
    model = read(count, lane, words[:limit], 256 if out.dtype == np.uint8 else MAX_LEVELS)
    position = int(lane[1])
    lanes = np.full(4, _START, np.uint64)
    lanes[0] = lane[0]
    if position + 2 * (model.lanes - 1) > limit:
        raise TruncatedError("A rANS stream ends before its states; load another checkpoint.")
    for number in range(1, model.lanes):
        lanes[number] = _take_state(words, position)
        position += 2
    rows, bits = model.starts.shape[0], ALONE_BITS if contexts is None else CELL_BITS
    cells = rows << (15 - bits)
    table = np.empty(cells + rows * model.levels, np.uint64)
    fill_table(model.starts.ravel(), rows, model.levels, bits, table)
    bulk, after = _bulk(out.size, model), cells + 1
    if contexts is None:
        end = decode_alone(out, table, after, bulk, lanes, words, position, limit)
    else:
        decode = decode_seldom if _SELDOM * (limit - position) < out.size else decode_often
        end = decode(out, contexts, model.levels, table, after, bulk, lanes, words, position, limit)
    if end != limit or (lanes != _START).any():
        raise CorruptFileError(
            f"A rANS stream of {out.size} symbols does not end where its {limit} words do; "
            "load another checkpoint."
        )


class Rans:
    """Order-0 rANS: one table for all symbols; a context is ignored."""

    id = 4
    name = "rans"

    def encode(self, values: Array, context: Array | None = None) -> bytes:
        """See `Codec.encode`; symbols only."""
        values = check_symbols(values, "Symbols")
        return self.encode_counted(values, None, symbol_counts(values)[None])

    def encode_counted(self, values: Array, context: Array | None, joint: Counts) -> bytes:
        """As `encode`, for checked symbols whose counts, int64[contexts or 1, levels], are known."""
        return _encode(values, None, joint.sum(axis=0)[None])

    def decode(self, payload: Buffer, out: Array, context: Array | None = None) -> None:
        """See `Codec.decode`."""
        check_output(out)
        if out.size == 0:
            expect_size(payload, 0, self.name)
            return
        _decode(payload, out, None, lambda _: np.array([out.size]))


class RansContext:
    """rANS with one table a context symbol; encoder and decoder must be given the same context."""

    id = 5
    name = "rans_context"

    def encode(self, values: Array, context: Array | None = None) -> bytes:
        """See `Codec.encode`; symbols, and symbols as context."""
        context, values = check_context(context, values.size, self.name), check_symbols(values, "Symbols")
        return self.encode_counted(values, context, joint_counts(values, context))

    def encode_counted(self, values: Array, context: Array | None, joint: Counts) -> bytes:
        """As `encode`, for checked symbols whose joint counts, int64[contexts, levels], are known."""
        return _encode(values, context, joint)

    def decode(self, payload: Buffer, out: Array, context: Array | None = None) -> None:
        """See `Codec.decode`."""
        check_output(out)
        context = expect_context(context, out.size, self.name)
        if out.size == 0:
            expect_size(payload, 0, self.name)
            return
        _decode(payload, out, context, partial(_count, context))
