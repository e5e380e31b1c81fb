"""The index's two tables, of tensors and of streams, column by column (docs/FORMAT.md, "Index").

Names of tensors are not stored: they follow from the tree, whose leaves the tensors are.  A stream's tensor
is stored as the move from its predecessor's, so that the column is nearly constant.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import Any, Final, get_args, get_type_hints

import numpy as np

from dynaquant_core.errors import CorruptFileError, LimitError
from dynaquant_core.format.columns import column, counts, numbered, pick, section, words
from dynaquant_core.format.entries import SHARED, StreamEntry, TensorEntry
from dynaquant_core.format.limits import MAX_DIMENSIONS, MAX_STREAMS, MAX_TENSOR_BYTES, MAX_TENSORS
from dynaquant_core.state.spec import TensorSpec

__all__ = ["read_streams", "read_tensors", "stream_table", "tensor_table"]

ROLES: Final[tuple[str, ...]] = get_args(get_type_hints(TensorEntry)["role"])


def tensor_table(tensors: Sequence[TensorEntry], parts: Sequence[str]) -> dict[str, Any]:
    """The columns that `read_tensors` takes back.

    Raises:
        LimitError: a tensor, or their number, is over the limit.
        CorruptFileError: an entry's role or part is unknown.
    """
    _check_tensors(tensors)
    dtypes = list(dict.fromkeys(tensor.dtype for tensor in tensors))
    return {
        "shape": [list(tensor.shape) for tensor in tensors],
        "dtypes": dtypes,
        "dtype": numbered([tensor.dtype for tensor in tensors], dtypes),
        "role": numbered([tensor.role for tensor in tensors], ROLES),
        "part": numbered([tensor.part for tensor in tensors], parts),
    }


def read_tensors(table: Any, names: Sequence[str], parts: Sequence[str]) -> tuple[TensorEntry, ...]:
    """Entries of the tensors called ``names``.

    Raises:
        CorruptFileError: a column is not one that `tensor_table` writes.
        LimitError: a tensor, or their number, is over the limit.
    """
    count = len(names)
    shapes = [_shape(shape) for shape in column(table, "shape", count)]
    dtypes = pick(table, "dtype", count, words(table, "dtypes"))
    roles: list[Any] = pick(table, "role", count, ROLES)
    owners = pick(table, "part", count, parts)
    rows = zip(names, shapes, dtypes, roles, owners, strict=True)
    tensors = tuple(TensorEntry(*row) for row in rows)
    _check_tensors(tensors)
    return tensors


def stream_table(
    streams: Sequence[StreamEntry], tensors: Sequence[TensorEntry], parts: Sequence[str]
) -> dict[str, Any]:
    """The columns that `read_streams` takes back.

    Raises:
        CorruptFileError: a stream is given twice, or lies in another part than its tensor.
        LimitError: their number is over the limit.
    """
    _check_streams(streams, tensors)
    kinds = list(dict.fromkeys(stream.kind for stream in streams))
    owners = [SHARED, *(stream.tensor for stream in streams)]
    sums = np.array([stream.checksum for stream in streams], "<u8").tobytes()
    return {
        "kinds": kinds,
        "kind": numbered([stream.kind for stream in streams], kinds),
        "part": numbered([stream.part for stream in streams], parts),
        "move": [after - before for before, after in pairwise(owners)],
        "codec": [stream.codec for stream in streams],
        "bytes": [stream.nbytes for stream in streams],
        "sums": base64.b64encode(sums).decode("ascii"),
    }


def read_streams(table: Any, tensors: Sequence[TensorEntry], parts: Sequence[str]) -> tuple[StreamEntry, ...]:
    """Entries of the streams, in the order of the file.

    Raises:
        CorruptFileError: a column is not one that `stream_table` writes.
        LimitError: their number is over the limit.
    """
    count = len(section(table, "bytes", list))
    moves = counts(table, "move", count, low=-MAX_TENSORS, high=MAX_TENSORS)
    owners = list(accumulate(moves, initial=SHARED))[1:]
    owner_parts = pick(table, "part", count, parts)
    kinds = pick(table, "kind", count, words(table, "kinds"))
    codecs = counts(table, "codec", count, high=255)
    lengths = counts(table, "bytes", count)
    sums = _sums(section(table, "sums", str), count)
    rows = zip(owner_parts, owners, kinds, codecs, lengths, sums, strict=True)
    streams = tuple(StreamEntry(*row) for row in rows)
    _check_streams(streams, tensors)
    return streams


def _shape(shape: Any) -> tuple[int, ...]:
    good = isinstance(shape, list) and all(type(dim) is int and dim >= 0 for dim in shape)
    if not good or len(shape) > MAX_DIMENSIONS:
        raise CorruptFileError(f"The index gives {str(shape)[:80]} as the shape of a tensor.")
    return tuple(shape)


def _check_tensors(tensors: Sequence[TensorEntry]) -> None:
    if len(tensors) > MAX_TENSORS:
        raise LimitError(f"The index lists {len(tensors)} tensors; the limit is {MAX_TENSORS}.")
    for tensor in tensors:
        # Zeros count as ones: an empty tensor of absurd dimensions is refused too.
        nbytes = TensorSpec(tuple(max(dim, 1) for dim in tensor.shape), tensor.dtype).nbytes
        if nbytes > MAX_TENSOR_BYTES:
            raise LimitError(
                f"The tensor {tensor.name!r} would have {nbytes} bytes; the limit is {MAX_TENSOR_BYTES}."
            )


def _check_streams(streams: Sequence[StreamEntry], tensors: Sequence[TensorEntry]) -> None:
    if len(streams) > MAX_STREAMS:
        raise LimitError(f"The index lists {len(streams)} streams; the limit is {MAX_STREAMS}.")
    seen = set()
    for stream in streams:
        if not SHARED <= stream.tensor < len(tensors):
            raise CorruptFileError(f"The index has a stream of tensor {stream.tensor} of {len(tensors)}.")
        if stream.tensor != SHARED and tensors[stream.tensor].part != stream.part:
            name = tensors[stream.tensor].name
            raise CorruptFileError(
                f"The index has a stream of {name!r} in the part {stream.part!r}, not its own."
            )
        seen.add((stream.part, stream.tensor, stream.kind))
    if len(seen) != len(streams):
        raise CorruptFileError("The index lists a stream twice.")


def _sums(text: str, count: int) -> list[int]:
    try:
        data = base64.b64decode(text, validate=True)
    except ValueError as error:
        raise CorruptFileError("The index's checksums are not base64.") from error
    if len(data) != 8 * count:
        raise CorruptFileError(f"The index has {len(data)} bytes of checksums for {count} streams.")
    sums: list[int] = np.frombuffer(data, "<u8").tolist()
    return sums
