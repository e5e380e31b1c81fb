"""From the coded moments of one checkpoint to its streams; the reader of them is `reader`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, MutableMapping
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from dynaquant_core.coding import encode_smallest
from dynaquant_core.methods.base import Stream
from dynaquant_core.methods.moments.forms import CODED, SAME, Coded
from dynaquant_core.methods.moments.held import MomentsReference, contexts
from dynaquant_core.methods.pooling import POOL_BYTES, grouped, write_layout

__all__ = ["moment_streams"]

CODE_CODECS: Final = ("constant", "rans", "rans_context", "raw")
ARRAY_CODECS: Final = ("constant", "rans", "zstd", "raw")
SCALE_CODECS: Final = ("constant", "planes", "zstd", "raw")


def moment_streams(
    names: Iterable[str],
    coded: MutableMapping[str, Coded],
    base: MomentsReference | None,
    *,
    forget: bool,
) -> Iterator[Stream]:
    """Writes moments, one stream in memory at a time.

    Args:
        names: every tensor of the part, in order.
        coded: those that are not as in the base.
        base: what a reader holds before; its 4-bit codes are the context of this checkpoint's.
        forget: takes each tensor out of ``coded`` once it is written.
    """
    letters = {name: one.letter for name, one in coded.items()}
    yield write_layout([ord(letters.get(name, SAME)) for name in names])
    yield from _shared(coded)
    small = [name for name, one in coded.items() if one.letter in CODED and one.codes.size <= POOL_BYTES]
    for members in grouped(small, letters.__getitem__).values():
        codes = np.concatenate([coded[name].codes for name in members])
        yield _stream(members, "pool", codes, contexts(base, members, letters))
    pooled = set(small)
    for name in [name for name in coded if letters[name] in CODED and name not in pooled]:
        codes = coded.pop(name).codes if forget else coded[name].codes
        yield _stream([name], "codes", codes, contexts(base, [name], letters))


def _shared(coded: Mapping[str, Coded]) -> Iterator[Stream]:
    """Scales and factors of all tensors: they are small, and share a coder's tables."""
    scales = [one.scales for one in coded.values() if one.scales.size]
    factors = [one.factors for one in coded.values() if one.factors.size]
    if scales:
        words = np.concatenate(scales).view(np.uint16)
        yield Stream("", "scales", *encode_smallest(words, None, SCALE_CODECS))
    if factors:
        yield Stream("", "factors", *encode_smallest(np.concatenate(factors), None, ARRAY_CODECS))


def _stream(names: list[str], kind: str, codes: NDArray[np.uint8], context: NDArray[Any] | None) -> Stream:
    return Stream(names[0], kind, *encode_smallest(codes, context, CODE_CODECS))
