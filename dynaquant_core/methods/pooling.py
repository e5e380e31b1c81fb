"""Small tensors of one part share a stream (ours).

A model has as many norms and biases as matrices.  Coded one by one, each pays for an index entry, a checksum
and a coder's tables that are longer than its own information; end to end they pay once.  A pool's stream is
filed under its first tensor, so that its bytes are counted with that tensor's role.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from dynaquant_core.coding import encode_smallest
from dynaquant_core.errors import CorruptFileError
from dynaquant_core.methods.base import Stream, StreamSource
from dynaquant_core.methods.streams import decode_stream
from dynaquant_core.quantize.flat import FLOATS
from dynaquant_core.state.spec import dtype_of

__all__ = ["POOL_BYTES", "grouped", "read_layout", "require_floating", "sliced", "write_layout"]

K = TypeVar("K", bound=Hashable)

#: Tensors of at most so many bytes are pooled.
POOL_BYTES = 1 << 14


def grouped(names: Iterable[str], key: Callable[[str], K]) -> dict[K, list[str]]:
    """Names by key, in their order.

    Example:
        >>> grouped(["a", "bb", "c"], len)
        {1: ['a', 'c'], 2: ['bb']}
    """
    groups: dict[K, list[str]] = {}
    for name in names:
        groups.setdefault(key(name), []).append(name)
    return groups


def sliced(pool: NDArray[Any], lengths: Mapping[str, int]) -> dict[str, NDArray[Any]]:
    """A pool's array cut into its members: name -> view of its own length, in order.

    Example:
        >>> sliced(np.arange(3), {"a": 1, "b": 2})["b"].tolist()
        [1, 2]
    """
    ends = np.cumsum(list(lengths.values()))[:-1].tolist()
    return dict(zip(lengths, np.split(pool, ends), strict=True))


def write_layout(places: Sequence[int]) -> Stream:
    """The stream that says of each tensor of the part, in order, where it is; meanings are the method's."""
    return Stream(
        "", "layout", *encode_smallest(np.array(places, np.uint8), None, ("raw", "zstd", "constant"))
    )


def require_floating(source: StreamSource) -> None:
    """Refuses a part whose codes stand for floating values, but of which a tensor is none.

    Raises:
        CorruptFileError: there is one.
    """
    for name, spec in source.specs.items():
        if dtype_of(spec.dtype) not in FLOATS:
            raise CorruptFileError(
                f"The tensor {name!r} is {spec.dtype}, which its part cannot hold: the index is damaged; "
                "load another checkpoint."
            )


def read_layout(source: StreamSource, highest: int) -> dict[str, int]:
    """Name -> place, for every tensor of the part.

    Raises:
        CorruptFileError: a place is above ``highest``, or the stream is not one that `write_layout` makes.
    """
    places = np.empty(len(source.specs), np.uint8)
    decode_stream(source, "", "layout", places)
    if places.size and int(places.max()) > highest:
        raise CorruptFileError(f"The layout has a tensor at place {int(places.max())}, above {highest}.")
    return dict(zip(source.specs, places.tolist(), strict=True))
