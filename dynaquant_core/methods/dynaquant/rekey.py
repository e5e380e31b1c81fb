"""A key checkpoint of what a reader holds: how a store shortens a chain without changing one code (ours)."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from dynaquant_core.coding import encode_smallest
from dynaquant_core.methods.base import Stream
from dynaquant_core.methods.dynaquant.draft import ARRAY_CODECS, code_candidates
from dynaquant_core.methods.dynaquant.held import Coded, Held
from dynaquant_core.methods.dynaquant.layout import Layout, Row, write_array
from dynaquant_core.methods.dynaquant.protected import write_protected
from dynaquant_core.methods.words import CODECS, Plain

__all__ = ["rekey_streams"]


def rekey_streams(held: Held, coder: str) -> Iterator[Stream]:
    """Streams that decode, without a base, to the same codes and codebooks.

    Args:
        held: what a reader holds.
        coder: the option of that name.
    """
    rows = [_row(tensor, held) for tensor in held.tensors.values()]
    layout = Layout(rows, 0 if held.shared is None else int(held.shared.size), held.scope)
    yield layout.stream()
    own = [
        tensor.centres
        for tensor, row in zip(held.tensors.values(), rows, strict=True)
        if isinstance(tensor, Coded) and row.book == "o"
    ]
    if layout.centre_count:
        centres = own if held.shared is None else [held.shared, *own]
        yield write_array("centres", np.concatenate(centres), ARRAY_CODECS)
    for name, tensor in held.tensors.items():
        if isinstance(tensor, Plain):
            yield Stream(name, "values", *encode_smallest(tensor.bits, None, CODECS))
            continue
        candidates = code_candidates(coder, has_base=False)
        yield Stream(name, "codes", *encode_smallest(tensor.codes, None, candidates))
        if tensor.protected.size:
            yield write_protected(name, tensor.protected, None)


def _row(tensor: Coded | Plain, held: Held) -> Row:
    if isinstance(tensor, Plain):
        return Row("h" if tensor.bf16 else "e")
    shared = held.shared is not None and np.array_equal(tensor.centres, held.shared)
    return Row("s" if shared else "o", tensor.centres.size)
