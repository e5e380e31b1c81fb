"""Reading one stream of a checkpoint, whatever the file says of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from numpy.typing import NDArray

from dynaquant_core.coding import codec_by_id
from dynaquant_core.errors import CorruptFileError
from dynaquant_core.methods.base import StreamSource

__all__ = ["chosen", "decode_stream"]


def chosen(specs: Mapping[str, Any], names: Iterable[str] | None) -> list[str]:
    """The names that a reader asked for (None: all), in the part's order; those it lacks are passed over.

    Example:
        >>> chosen({"a": 1, "b": 2}, ["b", "z"])
        ['b']
    """
    wanted = set(specs if names is None else names)
    return [name for name in specs if name in wanted]


def decode_stream(
    source: StreamSource, name: str, kind: str, out: NDArray[Any], context: NDArray[Any] | None = None
) -> None:
    """Decodes one stream into ``out``, against ``context`` if there is one.

    Raises:
        CorruptFileError: the stream is missing, damaged, or of a codec that cannot carry such values.
    """
    codec, payload = source.get(name, kind)
    try:
        codec_by_id(codec).decode(payload, out, context)
    except ValueError as error:
        where = f"The {kind!r} stream of {name or 'the part'!r}"
        raise CorruptFileError(f"{where} has a codec that does not carry {out.dtype} values.") from error
