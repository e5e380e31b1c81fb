"""The one table of codecs.

Ids are written into files: a line may be added, never changed or reused.  A codec is imported when it is
first asked for, so looking at a file costs no compiler.

Example:
    >>> from dynaquant_core.coding.registry import codec_by_id
    >>> codec_by_id(5).name
    'rans_context'
"""

from __future__ import annotations

from functools import cache
from importlib import import_module

from dynaquant_core.coding.codec import Codec, CountedCodec
from dynaquant_core.errors import UnknownCodecError

__all__ = ["CODECS", "codec_by_id", "codec_by_name", "codec_name", "counted_codec"]

_HERE = "dynaquant_core.coding"

#: id -> (name, "module:class")
CODECS: dict[int, tuple[str, str]] = {
    0: ("raw", f"{_HERE}.plain:Raw"),
    1: ("zstd", f"{_HERE}.zstd:Zstd"),
    2: ("huffman", f"{_HERE}.huffman:Huffman"),
    3: ("rle_huffman", f"{_HERE}.rle_huffman:RleHuffman"),
    4: ("rans", f"{_HERE}.rans:Rans"),
    5: ("rans_context", f"{_HERE}.rans:RansContext"),
    6: ("planes", f"{_HERE}.planes:Planes"),
    7: ("planes_xor", f"{_HERE}.planes:PlanesXor"),
    8: ("same", f"{_HERE}.plain:Same"),
    9: ("constant", f"{_HERE}.plain:Constant"),
    10: ("paper", "dynaquant_core.delta.paper:Paper"),
    11: ("lzma", f"{_HERE}.lzma:Lzma"),
    12: ("flags", f"{_HERE}.flags:Flags"),
}
_IDS = {name: number for number, (name, _) in CODECS.items()}


@cache
def _load(number: int) -> Codec:
    module, _, attribute = CODECS[number][1].partition(":")
    codec: Codec = getattr(import_module(module), attribute)()
    return codec


def codec_by_id(number: int) -> Codec:
    """The codec of an id found in a file.

    Raises:
        UnknownCodecError: this version has no such codec.
    """
    if number not in CODECS:
        raise UnknownCodecError(
            f"A stream was written with codec id {number}, this version knows 0 to {max(CODECS)}; "
            "install a newer dynaquant to read it."
        )
    return _load(number)


def codec_by_name(name: str) -> Codec:
    """The codec of a name.

    Raises:
        UnknownCodecError: there is none; the message lists those that are.

    Example:
        >>> codec_by_name("raw").id
        0
    """
    if name not in _IDS:
        raise UnknownCodecError(f"There is no codec {name!r}; choose one of {', '.join(_IDS)}.")
    return _load(_IDS[name])


@cache
def counted_codec(name: str) -> CountedCodec | None:
    """The codec of a name if it takes counts, else None; cached, because asking for a protocol is slow.

    Raises:
        UnknownCodecError: there is none of this name.

    Example:
        >>> counted_codec("rans").id, counted_codec("zstd")
        (4, None)
    """
    codec = codec_by_name(name)
    return codec if isinstance(codec, CountedCodec) else None


def codec_name(number: int) -> str:
    """The name of an id without importing the codec; "codec 77" where it is unknown."""
    return CODECS[number][0] if number in CODECS else f"codec {number}"
