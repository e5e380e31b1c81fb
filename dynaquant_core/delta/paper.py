"""The coder of paper sec. 6 as published: cyclic delta, rearrangement by source code, run lengths, Huffman.

A key checkpoint has no source: its codes are one group, coded as they are.

Example:
    >>> import numpy as np
    >>> from dynaquant_core.delta.paper import Paper
    >>> before = np.tile(np.arange(8, dtype=np.uint8), 500)
    >>> now = before.copy(); now[before == 3] = 4
    >>> out = np.empty_like(now)
    >>> payload = Paper().encode(now, before)
    >>> Paper().decode(payload, out, before)
    >>> len(payload) < 40 and bool((out == now).all())
    True
"""

from __future__ import annotations

import numpy as np

from dynaquant_core.coding.codec import Array, Buffer
from dynaquant_core.coding.counts import check_context, check_output, check_symbols
from dynaquant_core.coding.runs import decode_groups, encode_groups
from dynaquant_core.coding.wire import expect_context, expect_size
from dynaquant_core.delta.cyclic import cyclic_delta, undo_cyclic_delta
from dynaquant_core.delta.rearrange import group_sizes, rearrange, restore_order
from dynaquant_core.errors import CorruptFileError

__all__ = ["Paper"]


class Paper:
    """Sec. 6 in one codec; the context is the base's codes, or None for a key checkpoint."""

    id = 10
    name = "paper"

    def encode(self, values: Array, context: Array | None = None) -> bytes:
        """See `Codec.encode`; symbols, and symbols as context."""
        values = check_symbols(values, "Symbols")
        if values.size == 0:
            return b""
        if context is None:
            return encode_groups([values], int(values.max()) + 1)
        context = check_context(context, values.size, self.name)
        levels = max(int(values.max()), int(context.max())) + 1
        grouped = rearrange(cyclic_delta(context, values, levels=levels), context)
        sizes = group_sizes(context)
        return encode_groups(np.split(grouped, np.cumsum(sizes[sizes > 0])[:-1]), levels)

    def decode(self, payload: Buffer, out: Array, context: Array | None = None) -> None:
        """See `Codec.decode`."""
        check_output(out)
        if out.size == 0:
            expect_size(payload, 0, self.name)
        elif context is None:
            decode_groups(payload, out, [out.size], self.name)
        else:
            values = self._undo(payload, out, expect_context(context, out.size, self.name))
            if int(values.max()) > np.iinfo(out.dtype).max:
                raise CorruptFileError(
                    f"A paper stream holds the value {int(values.max())}, which does not fit {out.dtype}; "
                    "load another checkpoint."
                )
            out[:] = values

    def _undo(self, payload: Buffer, grouped: Array, context: Array) -> Array:
        """The values of ``payload``; ``grouped`` is where the groups may be decoded into."""
        sizes = group_sizes(context)
        if sizes.size > 256 and grouped.dtype == np.uint8:  # values are small, differences need not be
            grouped = np.empty(grouped.size, dtype=np.uint16)
        levels = decode_groups(payload, grouped, sizes[sizes > 0].tolist(), self.name)
        if sizes.size > levels:
            raise CorruptFileError(
                f"A paper stream of {levels} levels was not written against this base of {sizes.size}; "
                "load another checkpoint."
            )
        return undo_cyclic_delta(context, restore_order(grouped, context), levels=levels)
