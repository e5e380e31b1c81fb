"""What a reader holds of tensors kept bit for bit, and how it is read from streams."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from dynaquant_core.errors import CorruptFileError, MissingBaseError
from dynaquant_core.methods.base import StreamSource
from dynaquant_core.methods.digests import words_digest
from dynaquant_core.methods.pooling import POOL_BYTES, grouped, read_layout, sliced
from dynaquant_core.methods.streams import decode_stream
from dynaquant_core.state import TensorSpec, copied, empty_words
from dynaquant_core.threads import map_threads

__all__ = [
    "OWN",
    "POOL",
    "SAME",
    "ExactDecoder",
    "ExactReference",
    "Words",
    "base_words",
    "joined",
]

#: Places of a tensor in the layout: unchanged, its own stream, or pool number place - POOL.
SAME: Final = 0
OWN: Final = 1
POOL: Final = 2

Words = NDArray[Any]


@dataclass(slots=True)
class ExactReference:
    """Words of a checkpoint's tensors, or their digests; a `Reference` (methods.base).

    Args:
        specs: shape and dtype of the tensors that `items` yields.
        words: by name; the writer's side lacks large ones, a reader's may have more than ``specs``.
        digests: by name; missing ones are computed from the words.
    """

    specs: dict[str, TensorSpec]
    words: dict[str, Words]
    digests: dict[str, bytes] = field(default_factory=dict)

    def items(self) -> Iterator[tuple[str, Tensor]]:
        """Yields (name, tensor), a copy each, so that nobody can write into what later deltas stand on.

        Raises:
            MissingBaseError: this is a writer's reference, which knows a tensor by its digest only.
        """
        for name, spec in self.specs.items():
            yield name, copied(self.held(name), spec)

    def state(self) -> dict[str, Tensor]:
        """All tensors."""
        return dict(self.items())

    def held(self, name: str) -> Words:
        """The words of one tensor; raises MissingBaseError where only its digest is known."""
        if name not in self.words:
            raise MissingBaseError(
                f"The values of {name!r} are not held; load its checkpoint from the store."
            )
        return self.words[name]

    def digest(self, name: str) -> bytes | None:
        """The digest of one tensor, or None if nothing is known of it."""
        if name not in self.digests and name in self.words:
            self.digests[name] = words_digest(self.words[name])
        return self.digests.get(name)


def base_words(ref: ExactReference | None, names: list[str]) -> Words | None:
    """The base's words of some tensors end to end, or None where one is not held."""
    if ref is None or not all(name in ref.words for name in names):
        return None
    return joined([ref.words[name] for name in names])


def joined(parts: list[Words]) -> Words:
    """Arrays end to end; one alone is not copied."""
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


class ExactDecoder:
    """Reads one checkpoint's streams against its base."""

    def __init__(self, source: StreamSource, base: ExactReference | None) -> None:
        self._source, self._base = source, base
        self._place = read_layout(source, 255)

    def reference(self, wanted: list[str]) -> ExactReference:
        """Words of the wanted tensors, and of every small one: pools of later links stand on any of them."""
        place, specs = self._place, self._source.specs
        pools = grouped((name for name in specs if place[name] >= POOL), place.__getitem__)
        small = [name for name in specs if specs[name].nbytes <= POOL_BYTES and place[name] < POOL]
        large = [name for name in wanted if specs[name].nbytes > POOL_BYTES and place[name] < POOL]
        words: dict[str, Words] = {}
        for members in map_threads(self._pool, list(pools.values())):
            words |= members
        words |= dict(zip(small + large, map_threads(self._alone, small + large), strict=True))
        return ExactReference({name: specs[name] for name in wanted}, words)

    def _alone(self, name: str) -> Words:
        if self._place[name] == SAME:
            return self._unchanged(name)
        return self._decode("values", [name], empty_words(self._source.specs[name]))

    def _unchanged(self, name: str) -> Words:
        spec = self._source.specs[name]
        words = None if self._base is None else self._base.words.get(name)
        if words is None:
            raise MissingBaseError(f"The tensor {name!r} is stored as unchanged, but no base holds it.")
        if words.nbytes != spec.nbytes:
            raise CorruptFileError(f"The tensor {name!r} has {spec.nbytes} bytes, its base {words.nbytes}.")
        return words

    def _pool(self, names: list[str]) -> dict[str, Words]:
        specs = [self._source.specs[name] for name in names]
        if len({spec.dtype for spec in specs}) != 1 or max(spec.nbytes for spec in specs) > POOL_BYTES:
            raise CorruptFileError(f"The pool of {names[0]!r} holds tensors that do not belong together.")
        whole = TensorSpec((sum(spec.numel for spec in specs),), specs[0].dtype)
        pool = self._decode("pool", names, empty_words(whole))
        per_element = max(1, TensorSpec((1,), whole.dtype).nbytes // pool.itemsize)
        return sliced(pool, dict(zip(names, (spec.numel * per_element for spec in specs), strict=True)))

    def _decode(self, kind: str, names: list[str], out: Words) -> Words:
        context = base_words(self._base, names)
        if context is not None and (context.size, context.dtype) != (out.size, out.dtype):
            raise CorruptFileError(f"The tensor {names[0]!r} does not have the size of its base.")
        decode_stream(self._source, names[0], kind, out, context)
        return out
