"""Writing and reading small tables: numbers and code lengths, coded adaptively.

A table section is rANS state 0 followed by 16-bit words; it knows its own end, so no length is stored.

Example:
    >>> import numpy as np
    >>> from dynaquant_core.coding.tables import TableReader, TableWriter
    >>> writer = TableWriter()
    >>> writer.number(5, bits=3)
    >>> writer.lengths(np.uint8([1, 2, 2]))
    >>> reader = TableReader(writer.finish(), "test")
    >>> reader.number(bits=3), reader.lengths(3).tolist()
    (5, [1, 2, 2])
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dynaquant_core.coding.codec import Buffer
from dynaquant_core.coding.rans_model import slot_bits
from dynaquant_core.coding.tables_kernels import LENGTH_CONTEXTS, code_lengths, code_number, push_slots
from dynaquant_core.coding.wire import as_view
from dynaquant_core.errors import TruncatedError

__all__ = ["TableReader", "TableWriter"]

_WRITE, _READ = 0, 1
_NO_WORDS = np.zeros(1, np.uint16)
_NO_SLOTS = np.zeros(1, np.uint32)


def _prior() -> NDArray[np.int32]:
    return np.full(2 * LENGTH_CONTEXTS, 16, np.int32)


class TableWriter:
    """Collects the decisions of a table section; later tables profit from what earlier ones were like."""

    def __init__(self) -> None:
        self._counts = _prior()
        self._parts: list[NDArray[np.uint32]] = []

    @property
    def bits(self) -> float:
        """What `finish` would take, in bits, but for rounding up to words."""
        return 24.0 + sum(slot_bits(part) for part in self._parts)

    def number(self, value: int, *, bits: int) -> None:
        """Adds a number below 2**bits."""
        slots, lane = np.empty(bits, np.uint32), np.zeros(3, np.uint64)
        code_number(value, bits, slots, lane, _NO_WORDS, _WRITE)
        self._parts.append(slots)

    def lengths(self, lengths: NDArray[np.uint8]) -> None:
        """Adds code lengths, uint8[n], each at most 15."""
        slots, lane = np.empty(5 * lengths.size, np.uint32), np.zeros(3, np.uint64)
        code_lengths(lengths, self._counts, slots, lane, _NO_WORDS, _WRITE)
        self._parts.append(slots[: int(lane[1])])

    def finish(self) -> bytes:
        """The section's bytes."""
        slots = np.concatenate([*self._parts, _NO_SLOTS[:0]])
        words, lane = np.empty(slots.size + 2, np.uint16), np.array([1 << 16, 0, 0], np.uint64)
        top = push_slots(slots, slots.size, lane, words, words.size)
        words[top - 2], words[top - 1] = int(lane[0]) >> 16, int(lane[0]) & 0xFFFF
        return words[top - 2 :].astype("<u2", copy=False).tobytes()


class TableReader:
    """Reads a table section at the front of a payload.

    Args:
        payload: begins with the section.
        codec: named in errors.

    Raises:
        TruncatedError: the payload is shorter than any section.
    """

    def __init__(self, payload: Buffer, codec: str) -> None:
        view = as_view(payload)
        self._codec = codec
        self._words = np.frombuffer(view[: view.nbytes // 2 * 2], "<u2").astype(np.uint16)
        if self._words.size < 2:
            raise self._cut_short()
        self._counts = _prior()
        self._lane = np.array([int(self._words[0]) << 16 | int(self._words[1]), 2, 0], np.uint64)

    @property
    def end(self) -> int:
        """Bytes of the section so far; all of it once everything was read."""
        return 2 * int(self._lane[1])

    def _cut_short(self) -> TruncatedError:
        return TruncatedError(f"A {self._codec} stream ends inside its tables; load another checkpoint.")

    def number(self, *, bits: int) -> int:
        """The next number below 2**bits.

        Raises:
            TruncatedError: the payload ends before.
        """
        value = int(code_number(0, bits, _NO_SLOTS, self._lane, self._words, _READ))
        if self._lane[2]:
            raise self._cut_short()
        return value

    def lengths(self, n: int) -> NDArray[np.uint8]:
        """The next n code lengths.

        Raises:
            TruncatedError: the payload ends before.
        """
        lengths = np.zeros(n, np.uint8)
        code_lengths(lengths, self._counts, _NO_SLOTS, self._lane, self._words, _READ)
        if self._lane[2]:
            raise self._cut_short()
        return lengths
