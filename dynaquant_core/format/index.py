"""The index as JSON text and back (docs/FORMAT.md, "Index").

Reading checks everything that a decoder will rely on: names, shapes, limits, that every stream has a tensor
and a part, that the tensors are the leaves of the tree.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from dynaquant_core.errors import CorruptFileError, LimitError, UnsafePathError
from dynaquant_core.format.columns import section
from dynaquant_core.format.entries import Index
from dynaquant_core.format.limits import MAX_INDEX_BYTES, MAX_INDEX_NODES, MAX_INT_DIGITS
from dynaquant_core.format.meta import check_meta
from dynaquant_core.format.tables import read_streams, read_tensors, stream_table, tensor_table
from dynaquant_core.handlers import by_handler
from dynaquant_core.state.rebuild import leaf_names, unpack
from dynaquant_core.state.tree import pack

__all__ = ["as_damage", "index_from_json", "index_to_json"]

#: More digits in a row than a number may have, in a text or in a number.
_LONG = re.compile(rb"\d{%d}" % (MAX_INT_DIGITS + 1))


@contextmanager
def as_damage(path: str) -> Iterator[None]:
    """Whatever reading an index ends in says that the file is damaged, but for what the system refuses.

    One file must not keep a reader from the others, whoever wrote it.
    """
    try:
        yield
    except (CorruptFileError, UnsafePathError, OSError, MemoryError):
        raise
    except Exception as error:
        if by_handler(error):
            raise
        reason = f"{type(error).__name__}: {error}"
        raise CorruptFileError(
            f"{path}: its index holds what no writer puts there ({reason:.100}); take another checkpoint."
        ) from error


def index_to_json(index: Index) -> bytes:
    """The index as compact JSON.

    Raises:
        CorruptFileError: it is not one that `index_from_json` would take back.
        LimitError: it is over a limit of the format.
    """
    parts = list(check_meta(index.meta)["parts"])
    if [tensor.name for tensor in index.tensors] != leaf_names(index.skeleton):
        raise CorruptFileError("The table of tensors does not list the leaves of the tree in their order.")
    document = {
        "meta": pack(index.meta),
        "tree": index.skeleton,
        "tensors": tensor_table(index.tensors, parts),
        "streams": stream_table(index.streams, index.tensors, parts),
    }
    text = json.dumps(document, separators=(",", ":"), allow_nan=False).encode("ascii")
    _check_size(text)
    return text


def index_from_json(text: bytes) -> Index:
    """Reads an index; nothing in it is taken on trust.

    Raises:
        CorruptFileError: it is not one that `index_to_json` writes.
        LimitError: it is over a limit of the format.
    """
    _check_size(text)
    document = _parse(text)
    meta = check_meta(unpack(section(document, "meta", dict)))
    parts = list(meta["parts"])
    skeleton = document.get("tree")
    tensors = read_tensors(section(document, "tensors", dict), leaf_names(skeleton), parts)
    streams = read_streams(section(document, "streams", dict), tensors, parts)
    return Index(meta, skeleton, tensors, streams)


def _check_size(text: bytes) -> None:
    nodes = text.count(b",") + text.count(b"[") + text.count(b"{")
    if len(text) > MAX_INDEX_BYTES or nodes > MAX_INDEX_NODES:
        raise LimitError(
            f"The index has {len(text)} bytes and up to {nodes} values; "
            f"the limits are {MAX_INDEX_BYTES} and {MAX_INDEX_NODES}."
        )


def _parse(text: bytes) -> dict[str, Any]:
    # A call a number is a third of the time that a look at a store takes; few indices hold a long one.
    parse_int = _whole_number if _LONG.search(text) else None
    try:
        document = json.loads(
            text, object_pairs_hook=_distinct, parse_int=parse_int, parse_constant=_no_constant
        )
    except (ValueError, RecursionError) as error:
        raise CorruptFileError(f"The index is not JSON of this format: {str(error)[:100]}.") from error
    if not isinstance(document, dict):
        raise CorruptFileError("The index is not a JSON object.")
    return document


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) != len(pairs):
        raise CorruptFileError("The index has an object with a key given twice.")
    return members


def _whole_number(digits: str) -> int:
    if len(digits) > MAX_INT_DIGITS:
        raise LimitError(f"The index holds a number of {len(digits)} digits; the limit is {MAX_INT_DIGITS}.")
    return int(digits)


def _no_constant(word: str) -> None:
    raise CorruptFileError(f"The index holds {word}, which is not JSON.")
