"""A key checkpoint of what a reader holds, histories included: how a store shortens a chain."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from dynaquant_core.coding import encode_smallest
from dynaquant_core.methods.base import Stream
from dynaquant_core.methods.lattice.cells import Cells
from dynaquant_core.methods.lattice.draft import row_of
from dynaquant_core.methods.lattice.held import Held
from dynaquant_core.methods.lattice.layout import Layout
from dynaquant_core.methods.lattice.outliers import outlier_stream, outlier_words
from dynaquant_core.methods.lattice.rows import row_streams
from dynaquant_core.methods.lattice.runs import runs_of
from dynaquant_core.methods.words import CODECS, Plain

__all__ = ["rekey_streams"]


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
                yield from row_streams(name, own.rows, None, alone=True)
        cells = [own for own in members if isinstance(own, Cells)]
        words = [outlier_words(own, None) for own in cells]
        if words and (far := outlier_stream(cells[0].name, np.concatenate(words))):
            yield far
