"""A key checkpoint of what a reader holds, histories included: how a store shortens a chain.

A draft writes one too where tensors stay on lattices of earlier epochs.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from dynaquant_core.coding import encode_smallest
from dynaquant_core.methods.base import Stream
from dynaquant_core.methods.lattice.cells import Cells
from dynaquant_core.methods.lattice.held import Held
from dynaquant_core.methods.lattice.layout import BF16, EXACT, KEPT, NEW, NEW_WIDE, Layout, Row
from dynaquant_core.methods.lattice.outliers import outlier_stream, outlier_words
from dynaquant_core.methods.lattice.rows import row_streams
from dynaquant_core.methods.lattice.runs import runs_of
from dynaquant_core.methods.words import CODECS, Plain

__all__ = ["rekey_streams", "row_of"]


def rekey_streams(held: Held) -> Iterator[Stream]:
    """Streams that decode, without a base, to the same cells, lattices and histories."""
    tensors = held.tensors
    runs = runs_of({name: own.spec for name, own in tensors.items()})
    rows = [row_of(own, None, 0) for own in tensors.values()]
    yield from Layout(held.epoch, None, held.scale, rows, [0] * len(runs)).streams()
    epochs = [own.epoch if isinstance(own, Cells) else 0 for own in tensors.values()]
    yield Stream("", "epochs", *encode_smallest(np.array(epochs, np.uint32), None))
    for run in runs:
        members = [tensors[name] for name in run]
        for name, own in zip(run, members, strict=True):
            if isinstance(own, Plain):
                yield Stream(name, "values", *encode_smallest(own.bits, None, CODECS))
            else:
                yield Stream(name, "cells", *encode_smallest(own.packed, None))
                yield from row_streams(name, own.rows, None, own.middle, alone=True)
        cells = [own for own in members if isinstance(own, Cells)]
        words = [outlier_words(own, None) for own in cells]
        if words and (far := outlier_stream(cells[0].name, np.concatenate(words))):
            yield far


def row_of(own: Cells | Plain, below: Cells | Plain | None, group: int) -> Row:
    """How the layout says where a tensor is."""
    if isinstance(own, Plain):
        return Row(BF16 if own.bf16 else EXACT)
    stays = own.rows is not None
    if isinstance(below, Cells) and (below.step, below.epoch, below.alphabet) == (
        own.step,
        own.epoch,
        own.alphabet,
    ):
        return Row(KEPT, 0.0, group, own.factor, stays, own.edge)
    return Row(NEW if own.alphabet.narrow else NEW_WIDE, own.step, group, own.factor, stays, own.edge)
