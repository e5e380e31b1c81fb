"""TOPN: each checkpoint saves the entries of largest change, as a sparse matrix in CSR form."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from dynaquant_core.coding import encode_smallest
from dynaquant_core.errors import CorruptFileError
from dynaquant_core.methods.base import Stream, StreamSource
from dynaquant_core.methods.share import ShareMethod, moved_from
from dynaquant_core.methods.streams import decode_stream
from dynaquant_core.methods.tensorwise import expect_base
from dynaquant_core.methods.words import CODECS
from dynaquant_core.quantize.csr import csr, index_dtype, places
from dynaquant_core.state import TensorSpec, copied, words_of

__all__ = ["TopN"]

#: Gaps from here on are written apart, so that the others are symbols.
FAR: Final = 255

Words = NDArray[Any]
Places = NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Entries:
    """Entries that wait to be written.

    Args:
        places: where, in the flattened tensor, int64[n], ascending.
        words: what they are now, unsigned[n].
        base: words of the whole tensor as they were last saved.
        matrix: rows and columns.
    """

    places: Places
    words: Words
    base: Words
    matrix: tuple[int, int]


class TopN(ShareMethod[Entries, Words]):
    """The method ``"topn"``: TOPN, as arXiv 2009.13003 compares with it.

    Card:
        What it does: saves, of all entries of the model together, a share of those whose change since they
        were last saved is largest, bit for bit, in CSR form: entries a row, gaps between columns, values.
        What it costs: a key whole; then, for each entry saved, its value losslessly and its gap, 3 to 6 bits.
        What is lost: nothing of what is saved; all movement of what is not, until it has grown.
        Departures: column indices are coded as gaps; entries that did not change are not saved.

    Example:
        >>> import torch
        >>> from dynaquant_core.methods.base import Hints
        >>> from dynaquant_core.methods.share import ShareConfig
        >>> method, weight = TopN(), torch.zeros(16, 16)
        >>> _, held = method.draft({"w": weight}, None, ShareConfig(), Hints()).encode()
        >>> weight[3] = torch.arange(16)
        >>> draft = method.draft({"w": weight}, held, ShareConfig(share=0.01), Hints())
        >>> dict(draft.decoded)["w"][3, -4:]
        tensor([ 0., 13., 14., 15.])
    """

    name = "topn"

    def scores(self, tensor: Tensor, base: Words) -> NDArray[Any]:
        """How far each entry moved."""
        return np.abs(moved_from(tensor, base))

    def part(self, tensor: Tensor, base: Words, marks: NDArray[np.bool_]) -> Entries:
        """The marked entries."""
        where = np.flatnonzero(marks)
        return Entries(where, words_of(tensor)[where], base, _matrix(TensorSpec.of(tensor)))

    def hold(self, coded: Entries) -> Words:
        """The base with the entries in it."""
        return _with(coded.base, coded.places, coded.words)

    def adopt(self, tensor: Tensor) -> Words:
        """The tensor's words."""
        return words_of(tensor)

    def value(self, held: Words, spec: TensorSpec) -> Tensor:
        """The words."""
        return copied(held, spec)

    def write(self, name: str, coded: Entries) -> Iterator[Stream]:
        """Entries a row, their gaps, their words."""
        rows, columns = coded.matrix
        counts, gaps = csr(coded.places, rows=rows, columns=columns)
        far = gaps[gaps >= FAR]
        yield Stream(name, "rows", *encode_smallest(counts))
        if gaps.size:
            yield Stream(name, "gaps", *encode_smallest(np.minimum(gaps, FAR).astype(np.uint8)))
            yield Stream(name, "words", *encode_smallest(coded.words, coded.base[coded.places], CODECS))
        if far.size:
            yield Stream(name, "far", *encode_smallest(far))

    def read(self, source: StreamSource, name: str, spec: TensorSpec, base: Words | None) -> Words:
        """The base with the entries in it."""
        held = expect_base(base, name)
        found = _read_places(source, name, spec)
        known = held[found]
        words = np.empty_like(known)
        if words.size:
            decode_stream(source, name, "words", words, known)
        return _with(held, found, words)


def _read_places(source: StreamSource, name: str, spec: TensorSpec) -> Places:
    rows, columns = _matrix(spec)
    counts = np.empty(rows, index_dtype(columns))
    decode_stream(source, name, "rows", counts)
    if int(counts.max(initial=0)) > columns:
        raise CorruptFileError(f"A row of {name!r} has {int(counts.max())} entries in {columns} columns.")
    near = np.empty(int(counts.sum(dtype=np.int64)), np.uint8)
    if near.size:
        decode_stream(source, name, "gaps", near)
    gaps = near.astype(counts.dtype)
    far = np.empty(int(np.count_nonzero(near == FAR)), counts.dtype)
    if far.size:
        decode_stream(source, name, "far", far)
    gaps[near == FAR] = far
    return places(counts, gaps, columns=columns)


def _matrix(spec: TensorSpec) -> tuple[int, int]:
    """A tensor as a matrix: its first dimension's rows."""
    return spec.shape[0], spec.numel // spec.shape[0]


def _with(words: Words, where: Places, new: Words) -> Words:
    changed = words.copy()
    changed[where] = new
    return changed
