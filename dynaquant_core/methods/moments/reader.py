"""Reads the streams of the small policies."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from dynaquant_core.coding import codec_by_name
from dynaquant_core.errors import CorruptFileError, MissingBaseError
from dynaquant_core.methods.base import StreamSource
from dynaquant_core.methods.moments.forms import CODED, LETTERS, SAME, Coded, Form, form_of
from dynaquant_core.methods.moments.held import MomentsReference, contexts
from dynaquant_core.methods.pooling import POOL_BYTES, grouped, read_layout, require_floating, sliced
from dynaquant_core.methods.streams import decode_stream
from dynaquant_core.state import TensorSpec, empty_words
from dynaquant_core.threads import map_threads

__all__ = ["MomentsDecoder"]

#: The codec that cannot be read without the base's codes.
CONDITIONED = codec_by_name("rans_context").id


class MomentsDecoder:
    """Reads one checkpoint's moments against its base."""

    def __init__(self, source: StreamSource, base: MomentsReference | None) -> None:
        require_floating(source)
        self._source, self._base = source, base
        self._letters = _read_letters(source)
        own = [name for name, letter in self._letters.items() if letter != SAME]
        self._forms: dict[str, Form] = {
            name: form_of(self._letters[name], source.specs[name]) for name in own
        }
        scales = self._shared("scales", "uint16", {name: form.scales for name, form in self._forms.items()})
        self._scales = {name: words.view(np.int16) for name, words in scales.items()}
        self._factors = self._shared(
            "factors", "uint8", {name: form.factors for name, form in self._forms.items()}
        )

    def reference(self, wanted: list[str]) -> MomentsReference:
        """The wanted tensors, and every small one: pools of later links stand on any of them."""
        specs, forms = self._source.specs, self._forms
        small = [name for name in specs if specs[name].numel <= POOL_BYTES]
        needed = list(dict.fromkeys([*small, *wanted]))
        with_codes = [name for name in needed if name in forms and self._letters[name] in CODED]
        pools = grouped(
            (name for name in with_codes if forms[name].codes <= POOL_BYTES), self._letters.__getitem__
        )
        alone = [name for name in with_codes if forms[name].codes > POOL_BYTES]
        codes: dict[str, NDArray[Any]] = {}
        for members in map_threads(self._pool, list(pools.values())):
            codes |= members
        codes |= dict(zip(alone, map_threads(self._alone, alone), strict=True))
        coded = {name: self._coded(name, codes) for name in needed}
        return MomentsReference({name: specs[name] for name in wanted}, coded)

    def _coded(self, name: str, codes: dict[str, NDArray[Any]]) -> Coded:
        if self._letters[name] == SAME:
            return self._unchanged(name)
        empty = np.empty(0, np.uint8)
        factors = self._factors.get(name, empty)
        scales = self._scales.get(name, np.empty(0, np.int16))
        return Coded(self._letters[name], codes.get(name, empty), factors, scales)

    def _unchanged(self, name: str) -> Coded:
        coded = None if self._base is None else self._base.coded.get(name)
        if coded is None:
            raise MissingBaseError(f"The moment {name!r} is stored as unchanged, but no base holds it.")
        lengths = coded.codes.size, coded.factors.size, coded.scales.size
        if lengths != form_of(coded.letter, self._source.specs[name]):
            raise CorruptFileError(f"The moment {name!r} has another size than its base.")
        return coded

    def _alone(self, name: str) -> NDArray[Any]:
        return self._read("codes", [name], self._forms[name].codes)

    def _pool(self, names: list[str]) -> dict[str, NDArray[Any]]:
        lengths = {name: self._forms[name].codes for name in names}
        return sliced(self._read("pool", names, sum(lengths.values())), lengths)

    def _read(self, kind: str, names: list[str], length: int) -> NDArray[Any]:
        codes = empty_words(TensorSpec((length,), "uint8"))
        context = contexts(self._base, names, self._letters)
        if context is None and self._source.get(names[0], kind)[0] == CONDITIONED and self._base is None:
            raise MissingBaseError(f"The codes of {names[0]!r} continue a base that is not held.")
        if context is not None and context.size != length:
            raise CorruptFileError(f"The moment {names[0]!r} does not have the size of its base.")
        decode_stream(self._source, names[0], kind, codes, context)
        return codes

    def _shared(self, kind: str, dtype: str, lengths: dict[str, int]) -> dict[str, NDArray[Any]]:
        """The arrays of all tensors that have some, from the stream that they share."""
        lengths = {name: length for name, length in lengths.items() if length}
        if not lengths:
            return {}
        words = empty_words(TensorSpec((sum(lengths.values()),), dtype))
        decode_stream(self._source, "", kind, words)
        return sliced(words, lengths)


def _read_letters(source: StreamSource) -> dict[str, str]:
    """Name -> letter; raises CorruptFileError for one that stands for nothing."""
    letters = {name: chr(place) for name, place in read_layout(source, 255).items()}
    for name, letter in letters.items():
        if letter not in LETTERS + SAME:
            raise CorruptFileError(
                f"The moment {name!r} is of the form {letter!r}, which this version lacks."
            )
    return letters
