"""Yes/no flags, four a symbol, each with the chance of its class: the size of `rans_context`, in less time.

A symbol's context gives the class of each of its flags, two bits a flag.  Flags are taken to be independent
given their classes, so the tables of all 256 contexts follow from four chances, which are all that is stored.

Source: ours; the states and words are those of `coding.rans`.

Example:
    >>> import numpy as np
    >>> from dynaquant_core.coding.flags import Flags
    >>> flags = np.zeros(10_000, np.uint8); flags[::50] = 1 << 2  # the third flag, now and then
    >>> classes = np.full(10_000, 0b00_01_00_00, np.uint8)  # third flags are of class 1, others of 0
    >>> payload = Flags().encode(flags, classes)
    >>> out = np.empty_like(flags)
    >>> Flags().decode(payload, out, classes)
    >>> len(payload) < 220 and bool((out == flags).all())
    True
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dynaquant_core.coding.codec import Array, Buffer
from dynaquant_core.coding.counts import check_context, check_output, check_symbols, joint_counts
from dynaquant_core.coding.flags_kernels import add_flags, decode_flags, fill_intervals
from dynaquant_core.coding.rans_kernels import encode, fill_widths
from dynaquant_core.coding.rans_model_kernels import spent
from dynaquant_core.coding.wire import as_view, expect_context, expect_size
from dynaquant_core.errors import CorruptFileError, TruncatedError

__all__ = ["CLASSES", "FLAGS", "Flags", "flags_bytes"]

#: Flags a symbol, classes of flags; symbols and contexts that follow from them.
FLAGS, CLASSES = 4, 4
LEVELS, CONTEXTS = 1 << FLAGS, CLASSES**FLAGS
#: Chances are multiples of 1 / SCALE.
SCALE = 1 << 15
#: Four states, each of two words, stand behind the chances.
_HEAD = CLASSES + 8
#: Every state begins here when encoding, so it must end here when decoding.
_START = 1 << 16

Counts = NDArray[np.int64]
Chances = NDArray[np.int64]


def chances_of(joint: Counts) -> Chances:
    """The chance of a flag of each class, int64[4] in units of 2^-15, from counts int64[contexts, levels]."""
    flags, held = np.zeros(CLASSES, np.int64), np.zeros(CLASSES, np.int64)
    add_flags(joint, flags, held)
    found: Chances = np.clip((flags * SCALE + held // 2) // np.maximum(held, 1), 1, SCALE - 1)
    return found


def intervals(chances: Chances) -> NDArray[np.uint16]:
    """Where each symbol's interval begins in each context, uint16[256, 17], from 0 to 2^15."""
    starts = np.empty((CONTEXTS, LEVELS + 1), np.uint16)
    fill_intervals(chances, starts)
    return starts


def flags_bytes(joint: Counts) -> int:
    """Predicted payload size for symbols with these counts, int64[contexts, levels]; exact to a few bytes.

    Example:
        >>> import numpy as np
        >>> flags_bytes(np.full((1, 16), 1000))  # 64000 even flags
        8024
    """
    if not joint.any():
        return 0
    bits = float(spent(joint, intervals(chances_of(joint))))
    return 2 * (_HEAD + round(bits / 16))


class Flags:
    """Four flags a symbol under four classes; values below 16, contexts of uint8 or uint16 below 256."""

    id = 12
    name = "flags"

    def encode(self, values: Array, context: Array | None = None) -> bytes:
        """See `Codec.encode`; symbols below 16, and classes as context.

        Raises:
            ValueError: they are something else.
        """
        context, values = check_context(context, values.size, self.name), check_symbols(values, "Symbols")
        if values.size and (values.max() >= LEVELS or context.max() >= CONTEXTS):
            raise ValueError(f"Codec {self.name} takes symbols below {LEVELS} in contexts below {CONTEXTS}.")
        return self.encode_counted(values, context, joint_counts(values, context))

    def encode_counted(self, values: Array, context: Array | None, joint: Counts) -> bytes:
        """As `encode`, for checked symbols whose joint counts, int64[contexts, levels], are known."""
        if values.size == 0:
            return b""
        chances = chances_of(joint)
        packed, inverse = np.empty(CONTEXTS * LEVELS, np.uint32), np.empty(CONTEXTS * LEVELS, np.uint64)
        fill_widths(intervals(chances).ravel(), CONTEXTS, LEVELS, packed, inverse)
        for capacity in (flags_bytes(joint) // 2 + 64, values.size + 8):
            words, lanes = np.empty(_HEAD + capacity, np.uint16), np.full(4, _START, np.uint64)
            bulk = values.size - values.size % 4
            top = _HEAD + int(encode(values, context, LEVELS, packed, inverse, bulk, lanes, words[_HEAD:]))
            if top >= _HEAD:
                break
        words[top - _HEAD : top] = [
            *chances,
            *(half for x in lanes.tolist() for half in (x >> 16, x & 0xFFFF)),
        ]
        return words[top - _HEAD :].astype("<u2", copy=False).tobytes()

    def decode(self, payload: Buffer, out: Array, context: Array | None = None) -> None:
        """See `Codec.decode`."""
        check_output(out)
        context = expect_context(context, out.size, self.name)
        if out.size == 0:
            expect_size(payload, 0, self.name)
            return
        size = as_view(payload).nbytes
        if size % 2 or size < 2 * _HEAD:
            raise TruncatedError(
                f"A stream of flags holds {size} bytes, expected an even number from {2 * _HEAD} on; "
                "load another checkpoint."
            )
        words, limit = np.zeros(size // 2 + 4, np.uint16), size // 2
        words[:-4] = np.frombuffer(payload, "<u2")
        chances = words[:CLASSES].astype(np.int64)
        if not ((chances > 0) & (chances < SCALE)).all() or context.max() >= CONTEXTS:
            raise CorruptFileError(
                f"A stream of flags has chances {chances.tolist()} and contexts up to {context.max()}, "
                f"expected 1 to {SCALE - 1} and contexts below {CONTEXTS}; load another checkpoint."
            )
        halves = words[CLASSES:_HEAD].astype(np.uint64)
        lanes = halves[::2] << np.uint64(16) | halves[1::2]
        bulk = out.size - out.size % 4
        end = decode_flags(out, context, intervals(chances).ravel(), bulk, lanes, words, _HEAD, limit)
        if end != limit or (lanes != _START).any():
            raise CorruptFileError(
                f"A stream of {out.size} flag symbols does not end where its {limit} words do; "
                "load another checkpoint."
            )
