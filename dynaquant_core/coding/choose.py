r"""The smallest codec for a stream: estimates first, then only the best are encoded.

Symbols are judged by their counts.  On a stream that is memoryless given its context, conditional rANS is
within its tables of the entropy, which bounds every other codec; what has structure beyond that (repeats,
long untouched stretches) shows in a sample put through zstd.

Example:
    >>> import numpy as np
    >>> from dynaquant_core.coding.choose import encode_smallest
    >>> codes = np.random.default_rng(0).integers(0, 4, 1000).astype(np.uint8)
    >>> encode_smallest(codes, codes), encode_smallest(codes[:1])
    ((8, b''), (9, b'\x03'))
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from dynaquant_core.coding import cost
from dynaquant_core.coding.codec import Array
from dynaquant_core.coding.counts import is_symbols, joint_counts
from dynaquant_core.coding.plain import equal_bits
from dynaquant_core.coding.registry import codec_by_name, counted_codec
from dynaquant_core.lazy import lazy

__all__ = ["SYMBOL_CODECS", "VALUE_CODECS", "encode_smallest"]

Counts = NDArray[np.int64]

#: What is considered unless the caller names candidates.
SYMBOL_CODECS = ("raw", "constant", "same", "huffman", "rans", "rans_context", "zstd", "planes_xor")
VALUE_CODECS = ("raw", "constant", "same", "zstd", "planes", "planes_xor")

_SAMPLED = frozenset({"zstd", "planes", "planes_xor"})
#: Estimates from joint counts.
_COUNTED: dict[str, Callable[[Counts], int]] = {
    "huffman": lambda joint: cost.huffman_bytes(joint.sum(axis=0)),
    "rle_huffman": cost.rle_huffman_bytes,
    "rans": lambda joint: cost.order0_bytes(joint.sum(axis=0)),
    "rans_context": cost.context_bytes,
    "paper": cost.paper_bytes,
}
#: The same for long streams, of which tables are a hundredth: the entropy, which is far cheaper to find.
_BOUNDED: dict[str, Callable[[Counts], float]] = {
    "rans": lambda joint: cost.entropy_bits(joint.sum(axis=0)) / 8,
    "rans_context": lambda joint: cost.entropy_bits(joint) / 8,
}
_LONG = 1 << 18
#: A sample is this many pieces of this many values, spread over the array.
_PIECES, _PIECE = 4, 1 << 13
#: The runner-up is encoded as well if its estimate is this close.
_CLOSE = 1.03


def encode_smallest(
    values: Array, context: Array | None = None, candidates: Sequence[str] | None = None
) -> tuple[int, bytes]:
    """Encodes ``values`` with the candidate that makes it smallest.

    Args:
        values: any dtype[n]; symbol codecs are considered where `is_symbols` says so.
        context: None, or what the decoder will also hold: dtype of the values and n values, or symbols.
        candidates: names of codecs; None for `SYMBOL_CODECS` or `VALUE_CODECS`.

    Returns:
        (codec id, payload).

    Raises:
        ValueError: none of the candidates can encode the values.
    """
    values = np.ascontiguousarray(values)
    names = candidates or (SYMBOL_CODECS if is_symbols(values) else VALUE_CODECS)
    if "same" in names and equal_bits(values, context):
        return 8, b""
    if "constant" in names and values.size and not _varies(values):
        return 9, codec_by_name("constant").encode(values)
    names = [name for name in names if name not in {"same", "constant"} and _fits(name, values, context)]
    if not names:
        raise ValueError(f"No candidate codec fits {values.dtype}[{values.size}].")
    race = _Race(values, context)
    estimates = sorted(((name, race.estimate(name)) for name in names), key=lambda found: found[1])
    close = [name for name, size in estimates[:2] if size <= estimates[0][1] * _CLOSE + 8]
    payload, name = min(((race.encode(name), name) for name in close), key=lambda found: len(found[0]))
    if "raw" in names and len(payload) > values.nbytes:
        payload, name = codec_by_name("raw").encode(values), "raw"
    return codec_by_name(name).id, payload


class _Race:
    """What candidates would make of one array; whatever is found out on the way is found out once."""

    def __init__(self, values: Array, context: Array | None) -> None:
        self.values, self.context = values, context
        self._payloads: dict[str, bytes] = {}

    @lazy
    def _joint(self) -> Counts:
        return joint_counts(self.values, self.context if _conditions(self.context) else None)

    def estimate(self, name: str) -> float:
        """Bytes to expect of a candidate; a short array is coded to see."""
        if name == "raw":
            return self.values.nbytes
        if self.values.size <= _PIECES * _PIECE:
            return len(self.encode(name))
        if name in _SAMPLED:
            return self._sampled(name)
        known = _BOUNDED if self.values.size >= _LONG and name in _BOUNDED else _COUNTED
        return known[name](self._joint)

    def encode(self, name: str) -> bytes:
        """The candidate's payload."""
        if name not in self._payloads:
            codec = counted_codec(name)
            if codec is not None:  # what was counted for the estimate serves the tables too
                self._payloads[name] = codec.encode_counted(self.values, self.context, self._joint)
            else:
                self._payloads[name] = codec_by_name(name).encode(self.values, self.context)
        return self._payloads[name]

    def _sampled(self, name: str) -> float:
        """Scales up what a few pieces, coded together, take."""
        values, context = self.values, self.context
        begins = np.linspace(0, values.size - _PIECE, _PIECES).astype(np.int64)
        pieces = [slice(begin, begin + _PIECE) for begin in begins.tolist()]
        sample = np.concatenate([values[piece] for piece in pieces])
        base = None if context is None else np.concatenate([context[piece] for piece in pieces])
        return len(codec_by_name(name).encode(sample, base)) * (values.size / sample.size)


def _varies(values: Array) -> bool:
    rows = values.view(np.uint8).reshape(values.size, values.itemsize)
    return bool((rows[:_PIECE] != rows[0]).any() or (rows != rows[0]).any())


def _fits(name: str, values: Array, context: Array | None) -> bool:
    if name in {"raw", "zstd", "planes"}:
        return True
    if name == "planes_xor":
        return context is not None and context.dtype == values.dtype and context.size == values.size
    if name == "rans_context" and not _conditions(context):
        return False
    return is_symbols(values)


def _conditions(context: Array | None) -> bool:
    return context is not None and is_symbols(context)
