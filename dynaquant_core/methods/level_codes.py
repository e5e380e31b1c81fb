"""Codes of levels as tensorwise methods write and read them, and evenly spaced levels as a stream.

The published ratios of methods without deltas are widths (32 / 6 = 5.33, 32 / 7 = 4.57), so their codes are
*packed*; *huffman* is what the same codes cost with an entropy coder behind them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dynaquant_core.coding import encode_smallest
from dynaquant_core.config import require_choice
from dynaquant_core.errors import ConfigError, CorruptFileError
from dynaquant_core.methods.base import Stream, StreamSource
from dynaquant_core.methods.streams import decode_stream
from dynaquant_core.quantize.even import EvenLevels
from dynaquant_core.quantize.even_kernels import look_up
from dynaquant_core.quantize.packing import code_width, pack, packed_bytes, unpack
from dynaquant_core.state import TensorSpec, copied, dtype_of, empty_words, words_of

__all__ = [
    "CODERS",
    "HUFFMAN",
    "Layer",
    "below",
    "empty_codes",
    "level_words",
    "read_codes",
    "read_levels",
    "require_coder",
    "write_codes",
    "write_levels",
]

Codes = NDArray[np.uint8]

#: The two ways to write codes, and the kind of stream that each makes.
CODERS: Final = {"packed": "packed", "huffman": "codes"}
#: What may code them, or their differences: nothing but Huffman, unless they are all one.
HUFFMAN: Final = ("constant", "huffman")


@dataclass(frozen=True, slots=True, eq=False)
class Layer:
    """A tensor on evenly spaced levels, as a reader holds it.

    Args:
        levels: what codes stand for.
        codes: uint8[n], below ``levels.bins``.
    """

    levels: EvenLevels
    codes: Codes

    def tensor(self, spec: TensorSpec) -> Tensor:
        """The levels that the codes stand for."""
        return copied(level_words(self.codes, self.levels.table(), spec), spec)


def require_coder(owner: str, coder: object) -> None:
    """Raises ConfigError unless ``coder`` is one of `CODERS`."""
    require_choice(owner, "coder", coder, tuple(CODERS))


def write_codes(name: str, codes: Codes, bins: int, coder: str) -> Stream:
    """The stream of uint8[n] codes below ``bins``, which is at most 256."""
    if coder == "packed":
        packed = pack(codes, code_width(bins))
        return Stream(name, CODERS[coder], *encode_smallest(packed, None, ("raw",)))
    return Stream(name, CODERS[coder], *encode_smallest(codes, None, HUFFMAN))


def read_codes(source: StreamSource, name: str, out: Codes, bins: int) -> None:
    """Fills ``out``, uint8[n], with what `write_codes` wrote, by whichever coder; ``bins`` from 1 to 256.

    Raises:
        CorruptFileError: there is no such stream, or a code is not below ``bins``.
    """
    if source.has(name, CODERS["packed"]):
        width = code_width(bins)
        packed = np.empty(packed_bytes(out.size, width), np.uint8)
        decode_stream(source, name, CODERS["packed"], packed)
        out[:] = unpack(packed, out.size, width)
    else:
        decode_stream(source, name, CODERS["huffman"], out)
    below(out, bins, name)


def below(codes: Codes, bins: int, name: str) -> None:
    """Raises CorruptFileError where a code of a file is not below ``bins``."""
    highest = int(codes.max(initial=0))
    if highest >= bins:
        raise CorruptFileError(f"Tensor {name!r} has code {highest} of {bins}; load another checkpoint.")


def empty_codes(spec: TensorSpec) -> Codes:
    """Room for a byte an element; raises LimitError where a file announces more than the machine has."""
    return empty_words(TensorSpec(spec.shape, "uint8"))


def write_levels(name: str, levels: EvenLevels, base: EvenLevels | None = None) -> Stream:
    """The stream of evenly spaced levels: float32[3], low, high, bins; nothing where they are the base's."""
    context = None if base is None else _as_array(base)
    return Stream(name, "levels", *encode_smallest(_as_array(levels), context, ("same", "raw")))


def read_levels(source: StreamSource, name: str, base: EvenLevels | None = None) -> EvenLevels:
    """Takes back what `write_levels` wrote.

    Raises:
        CorruptFileError: the stream is missing or does not hold such levels.
    """
    found = np.empty(3, np.float32)
    decode_stream(source, name, "levels", found, None if base is None else _as_array(base))
    low, high, bins = found.tolist()
    try:
        if not bins.is_integer():
            raise ConfigError(f"{bins} is not a number of levels")
        return EvenLevels(low, high, int(bins))
    except ConfigError as error:
        raise CorruptFileError(f"Tensor {name!r} has damaged levels: {error}") from error


def level_words(codes: Codes, table: NDArray[np.float32], spec: TensorSpec) -> NDArray[Any]:
    """The words, in the dtype of ``spec``, of the values that codes stand for; for `state.copied`."""
    values = words_of(torch.from_numpy(table).to(dtype_of(spec.dtype)))
    out = np.empty(codes.size, values.dtype)
    look_up(codes, values, out)
    return out


def _as_array(levels: EvenLevels) -> NDArray[np.float32]:
    return np.array([levels.low, levels.high, levels.bins], np.float32)
