"""Rows that stay what they are: noise alone would move them, and nothing would take it out again (ours).

The row of an embedding's ``padding_idx`` is zero, and no gradient reaches it; nor does one reach the row of a
token that never occurs.  On a lattice each restore would add noise to them.  So rows of zeros are said to be
zeros, and rows that still are what a run was restored to are said to be what the base holds.  So are an
expert's of a stack that nobody asked, and a dead unit's.

A pruned matrix has zeros all over, and its training goes by them.  So each zero of a row is said (`zeros`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dynaquant_core.coding import encode_smallest
from dynaquant_core.errors import CorruptFileError, MissingBaseError
from dynaquant_core.methods.base import Stream, StreamSource
from dynaquant_core.methods.lattice.zeros import (
    Bits,
    find_zeros,
    read_zeros,
    rows_with,
    write_zeros,
    zero_stream,
)
from dynaquant_core.methods.streams import decode_stream
from dynaquant_core.methods.words import CODECS
from dynaquant_core.state.raw import empty_words, tensor_of, words_of
from dynaquant_core.state.spec import TensorSpec, dtype_of

__all__ = ["StillRows", "find_rows", "holds_rows", "read_rows", "row_streams"]

#: What ``still`` says of a row: it is on the lattice, what the base holds, zeros, in the stream ``rows``, on
#: the lattice but for the zeros of the stream ``zeros``.
MOVING, HELD, ZEROS, GIVEN, PRUNED = range(5)

NO_ROWS: Final = np.zeros(0, np.bool_)

Marks = NDArray[np.uint8]
Middle = Callable[[], NDArray[np.bool_]]


@dataclass(frozen=True, slots=True)
class StillRows:
    """Rows of a tensor, which are its first dimension's, that are not read off its lattice.

    Args:
        marks: uint8[rows]: `MOVING`, `HELD`, `ZEROS` or `PRUNED`.
        values: of the rows that are held, in order, in the tensor's dtype, [m, weights of a row], on the CPU.
        zeros: where weights of pruned rows are zero; None where no row is pruned.
    """

    marks: Marks
    values: Tensor
    zeros: Bits | None = None

    def part(self, rows: slice) -> StillRows:
        """Those of some rows, from a multiple of 8 on."""
        first, last = (np.count_nonzero(self.marks[:end] == HELD) for end in (rows.start, rows.stop))
        width = self.values.shape[1]
        zeros = (
            None if self.zeros is None else self.zeros[rows.start * width // 8 : -(-rows.stop * width // 8)]
        )
        return StillRows(self.marks[rows], self.values[first:last], zeros)

    def held(self) -> NDArray[np.bool_]:
        """Which rows are held, bool[rows]."""
        found: NDArray[np.bool_] = self.marks == HELD
        return found

    def are_in(self, base: Tensor) -> bool:
        """Whether a tensor has all rows that are held as they are."""
        return torch.equal(base.reshape(self.marks.size, -1)[self._places(HELD, base)], self.values)

    def move(self) -> bool:
        """Whether some rows are read off the lattice."""
        return bool(((self.marks == MOVING) | (self.marks == PRUNED)).any())

    def write(self, out: Tensor) -> None:
        """Puts the rows into a tensor with as many weights, of any floating dtype, on any device."""
        rows = out.view(self.marks.size, -1)
        rows[self._places(ZEROS, out)] = 0
        rows[self._places(HELD, out)] = self.values.to(out.device, out.dtype)
        if self.zeros is not None:
            write_zeros(self.zeros, out)

    def _places(self, mark: int, out: Tensor) -> Tensor:
        return torch.from_numpy(np.flatnonzero(self.marks == mark)).to(out.device)


def find_rows(
    tensor: Tensor,
    base: Iterable[tuple[slice, Tensor]] = (),
    asked: NDArray[np.bool_] = NO_ROWS,
    *,
    rounded: bool = False,
) -> StillRows | None:
    """The rows of a live tensor that stay; None where there are none.

    Args:
        tensor: floating, of any device.
        base: what a reader holds of the tensor, some rows at a time (`parts`); none: rows are looked at for
            zeros only.
        asked: bool[rows], which of them may be what the run was restored to.
        rounded: ``base`` has rounded them to bfloat16, so those stay that are within its precision.

    Example:
        >>> found = find_rows(torch.tensor([[1.0, 2], [3, 0], [0, 0]]))
        >>> found.marks.tolist()
        [0, 4, 2]
    """
    if tensor.dim() < 2 or tensor.numel() == 0:
        return None
    matrix = tensor.detach().reshape(tensor.shape[0], -1)
    marks = np.zeros(len(matrix), np.uint8)
    for part, values in base:
        rows, below = _rows_of(part, matrix.shape[1]), values.view(-1, matrix.shape[1])
        places, alike = np.flatnonzero(asked[rows]), _near if rounded else _alike
        marks[rows][places[alike(matrix[rows], below, places)]] = HELD
    empty = np.flatnonzero((matrix[:, 0] == 0).cpu().numpy())  # of trained weights next to none
    marks[empty[_words(matrix, empty).max(1, initial=0) == 0]] = ZEROS
    zeros = find_zeros(matrix, marks == MOVING)
    if zeros is not None:
        marks[rows_with(zeros, len(matrix), matrix.shape[1])] = PRUNED
    if not marks.any():
        return None
    held = torch.from_numpy(np.flatnonzero(marks == HELD)).to(matrix.device)
    return StillRows(marks, matrix[held].cpu(), zeros)


def holds_rows(rows: StillRows | None) -> bool:
    """Whether some rows are what a base holds."""
    return rows is not None and len(rows.values) > 0


def row_streams(
    name: str, own: StillRows | None, below: StillRows | None, middle: Middle, *, alone: bool = False
) -> Iterator[Stream]:
    """What says them; ``alone``: without a base that has them, so that rows that are held are given.

    Args:
        name: of the tensor.
        own: its rows; None: there are none that stay.
        below: of its base; None: it has none.
        middle: which of its weights are 0 steps from zero; asked where rows are pruned.
        alone: as said.
    """
    if own is None:
        return
    marks = np.where(own.marks == HELD, GIVEN, own.marks).astype(np.uint8) if alone else own.marks
    known = None if below is None or alone else below
    yield Stream(name, "still", *encode_smallest(marks, None if known is None else known.marks))
    if own.zeros is not None:
        yield zero_stream(name, own.zeros, None if known is None else known.zeros, middle())
    if alone and len(own.values):
        yield Stream(name, "rows", *encode_smallest(words_of(own.values), None, CODECS))


def read_rows(
    source: StreamSource,
    name: str,
    below: StillRows | None,
    base: Callable[[], Tensor] | None,
    middle: Middle,
) -> StillRows:
    """What `row_streams` wrote.

    Args:
        source: of a file.
        name: of a tensor on a lattice, whose row of the layout says that there is something.
        below: what the base says.
        base: decodes what a reader holds of the tensor, in its shape; asked where rows are held.
        middle: which of its weights are 0 steps from zero; asked where rows are pruned.

    Raises:
        CorruptFileError: the streams are not what `row_streams` writes.
        MissingBaseError: rows are what a base holds, which is not given.
    """
    spec = source.specs[name]
    if len(spec.shape) < 2 or not spec.numel:
        raise CorruptFileError(f"tensor {name}: rows stay, but {spec} has none.")
    marks = np.empty(spec.shape[0], np.uint8)
    decode_stream(source, name, "still", marks, None if below is None else below.marks)
    held, given = (np.flatnonzero(marks == mark) for mark in (HELD, GIVEN))
    if marks.max() > PRUNED or (held.size and given.size):
        raise CorruptFileError(f"tensor {name}: its rows are marked {np.unique(marks).tolist()}.")
    if held.size and base is None:
        raise MissingBaseError(f"tensor {name}: rows are what its base holds, but no base is given.")
    values = torch.empty(0, spec.numel // spec.shape[0], dtype=dtype_of(spec.dtype), device="cpu")
    if held.size and base is not None:
        values = base().reshape(marks.size, -1)[torch.from_numpy(held)]
    elif given.size:
        values = _given(source, name, TensorSpec((given.size, values.shape[1]), spec.dtype))
    zeros = None
    if (marks == PRUNED).any():
        zeros = read_zeros(source, name, marks == PRUNED, None if below is None else below.zeros, middle())
    return StillRows(np.where(marks == GIVEN, HELD, marks).astype(np.uint8), values, zeros)


def _rows_of(part: slice, width: int) -> slice:
    """Rows of a part of `row_parts`."""
    return slice(part.start // width, part.stop // width)


def _given(source: StreamSource, name: str, spec: TensorSpec) -> Tensor:
    words = empty_words(spec)
    decode_stream(source, name, "rows", words)
    return tensor_of(words, spec)


def _alike(matrix: Tensor, base: Tensor, rows: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Which of the rows have every bit of the base's; most others differ in their first value."""
    same: NDArray[np.bool_] = (_words(matrix[:, :1], rows) == _words(base[:, :1], rows)).all(1)
    alike = rows[same]
    same[same] = (_words(matrix, alike) == _words(base, alike)).all(1)
    return same


def _near(matrix: Tensor, base: Tensor, rows: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Which of the rows are as near to the base's as bfloat16 is to what it rounds."""
    places = torch.from_numpy(rows)
    rough = base[places].to(torch.float32)
    away = (matrix[places.to(matrix.device)].cpu().to(torch.float32) - rough).abs_()
    near: NDArray[np.bool_] = (away <= rough.abs_() * torch.finfo(torch.bfloat16).eps).all(1).numpy()
    return near


def _words(matrix: Tensor, rows: NDArray[np.int64]) -> NDArray[Any]:
    """Bits of some rows, unsigned[m, weights of a row]."""
    some = matrix[torch.from_numpy(rows).to(matrix.device)]
    return words_of(some).reshape(rows.size, matrix.shape[1])
