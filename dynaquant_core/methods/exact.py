"""Any tensor, bit for bit.

Each tensor that changed since the base costs its losslessly coded words: byte planes, exclusive-or with the
base's words, plain zstd, one repeated value or the raw bytes, whichever is smallest.  One that did not change
costs nothing; a digest of 128 bits finds that out without the base's values.

The reader's side holds every value.  The writer's side holds the digests, and values only of tensors small
enough that exclusive-or is worth the memory (`Exact.hold_bytes`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import xxhash
from numpy.typing import NDArray
from torch import Tensor

from dynaquant_core.coding import codec_by_id, encode_smallest
from dynaquant_core.config import require
from dynaquant_core.errors import CorruptFileError, MissingBaseError
from dynaquant_core.methods.base import Hints, Reference, Space, Stream, StreamSource
from dynaquant_core.methods.fixed import NoConfig, fixed_space
from dynaquant_core.methods.pooling import POOL_BYTES, grouped, read_layout, sliced, write_layout
from dynaquant_core.state import TensorSpec, empty_words, tensor_of, words_of
from dynaquant_core.threads import map_threads

__all__ = ["Exact", "ExactDraft", "ExactReference", "words_digest"]

#: Places of a tensor in the layout: unchanged, its own stream, or pool number place - POOL.
SAME: Final = 0
OWN: Final = 1
POOL: Final = 2

PLAIN_CODECS: Final = ("constant", "planes", "zstd", "raw")
DELTA_CODECS: Final = ("constant", "planes_xor", "planes", "zstd", "raw")

Words = NDArray[Any]


def words_digest(words: Words) -> bytes:
    """xxh3_128 of a tensor's words: equal digests are taken for equal tensors."""
    return xxhash.xxh3_128_digest(words.view(np.uint8).data)


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
            yield name, tensor_of(self.held(name).copy(), spec)

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


class ExactDraft:
    """A draft of tensors kept bit for bit; see `methods.base.Draft`.

    Args:
        config: the one point there is.
        state: live tensors by name.
        ref: the base, or None for a key checkpoint.
        roles: by name; pools do not mix them.
        hold_bytes: see `Exact`.
    """

    def __init__(
        self,
        config: NoConfig,
        state: Mapping[str, Tensor],
        ref: ExactReference | None,
        roles: Mapping[str, str],
        hold_bytes: int,
    ) -> None:
        self.config, self.is_key = config, ref is None
        self._live: Mapping[str, Tensor] = state
        self._ref = ref or ExactReference({}, {})
        self._specs = {name: TensorSpec.of(tensor) for name, tensor in state.items()}
        self._hold_bytes = hold_bytes
        words = {name: words_of(tensor) for name, tensor in state.items()}
        self._digests = dict(zip(words, map_threads(words_digest, list(words.values())), strict=True))
        self._words = {name: own for name, own in words.items() if self._changed(name)}
        small = [name for name, own in self._words.items() if own.nbytes <= POOL_BYTES]
        self._pools = list(grouped(small, lambda name: (roles.get(name), self._specs[name].dtype)).values())
        self._is_own = False
        self._streams: list[Stream] | None = None

    def _changed(self, name: str) -> bool:
        return self._ref.digest(name) != self._digests[name]

    @property
    def decoded(self) -> Iterator[tuple[str, Tensor]]:
        """The live tensors: what a reader gets is what they are."""
        for name, tensor in self._live.items():
            yield name, tensor.detach()

    @property
    def size(self) -> int:
        """Bytes of all streams: encoded to know it, and kept for `encode`."""
        if self._streams is None:
            self._streams = list(self._encoded())
        return sum(len(stream.payload) for stream in self._streams)

    def detach(self) -> None:
        """Copies the tensors that changed, unless they were encoded already; lets go of the live ones."""
        if not self._is_own and self._streams is None:
            self._words = {name: words.copy() for name, words in self._words.items()}
            self._is_own = True
        self._live = {}

    def encode(self) -> tuple[Iterable[Stream], Reference]:
        """Streams, one in memory at a time unless `size` was asked for, and what the writer then knows."""
        held = {name: self._kept(name) for name in self._specs if self._is_held(name)}
        reference = ExactReference(self._specs, held, self._digests)
        return self._encoded() if self._streams is None else self._streams, reference

    def _is_held(self, name: str) -> bool:
        known = name in self._words or name in self._ref.words
        return known and self._specs[name].nbytes <= self._hold_bytes

    def _kept(self, name: str) -> Words:
        if name not in self._words:
            return self._ref.words[name]
        return self._words[name] if self._is_own else self._words[name].copy()

    def _encoded(self) -> Iterator[Stream]:
        place = {name: POOL + number for number, pool in enumerate(self._pools) for name in pool}
        alone = [name for name in self._words if name not in place]
        place |= dict.fromkeys(alone, OWN)
        yield write_layout([place.get(name, SAME) for name in self._specs])
        for pool in self._pools:
            yield self._stream("pool", pool)
        for name in alone:
            yield self._stream("values", [name])

    def _stream(self, kind: str, names: list[str]) -> Stream:
        words = joined([self._words[name] for name in names])
        context = base_words(self._ref, names)
        candidates = PLAIN_CODECS if context is None else DELTA_CODECS
        return Stream(names[0], kind, *encode_smallest(words, context, candidates))


def base_words(ref: ExactReference | None, names: list[str]) -> Words | None:
    """The base's words of some tensors end to end, or None where one is not held."""
    if ref is None or not all(name in ref.words for name in names):
        return None
    return joined([ref.words[name] for name in names])


def joined(parts: list[Words]) -> Words:
    """Arrays end to end; one alone is not copied."""
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


class Exact:
    """The method ``"exact"``: every tensor it is given, bit for bit.

    Args:
        hold_bytes: the writer keeps the values of tensors up to this size to code the next checkpoint
            against them; of larger ones it keeps a digest.

    Raises:
        ConfigError: ``hold_bytes`` is not a whole number of at least `POOL_BYTES`.

    Example:
        >>> import torch
        >>> method = Exact()
        >>> draft = method.draft({"b": torch.zeros(9)}, None, NoConfig(), Hints())
        >>> streams, reference = draft.encode()
        >>> [stream.kind for stream in streams], reference.state()["b"].sum()
        (['layout', 'pool'], tensor(0.))
    """

    name = "exact"
    owns = frozenset({"weight", "moment"})

    def __init__(self, *, hold_bytes: int = 1 << 20) -> None:
        good = type(hold_bytes) is int and hold_bytes >= POOL_BYTES
        require(good, f"method exact: hold_bytes must be a whole number >= {POOL_BYTES}, got {hold_bytes!r}.")
        self.hold_bytes = hold_bytes

    def options(self) -> dict[str, Any]:
        """Nothing that a reader needs to know."""
        return {}

    def config(self, data: Mapping[str, Any]) -> NoConfig:
        """Takes back what `NoConfig.as_dict` wrote."""
        return NoConfig.from_dict(data)

    def space(self, *, gradients: bool) -> Space:  # noqa: ARG002
        """One point."""
        return fixed_space()

    def accepts(self, tensor: Tensor) -> bool:  # noqa: ARG002
        """Every tensor."""
        return True

    def draft(
        self, state: Mapping[str, Tensor], ref: Reference | None, config: NoConfig, hints: Hints
    ) -> ExactDraft:
        """Drafts a checkpoint; reads every tensor once for its digest."""
        base = ref if isinstance(ref, ExactReference) else None
        return ExactDraft(config, state, base, hints.roles, self.hold_bytes)

    def decode(
        self, streams: StreamSource, ref: Reference | None, names: Iterable[str] | None = None
    ) -> ExactReference:
        """Reads tensors back; pools are always read whole, since the next link may stand on any of them.

        Raises:
            CorruptFileError: the streams are not what this method writes.
            MissingBaseError: they stand on a base that is not given.
        """
        base = ref if isinstance(ref, ExactReference) else None
        wanted = set(streams.specs if names is None else names)
        return _Decoder(streams, base).reference([name for name in streams.specs if name in wanted])


class _Decoder:
    """Reads one checkpoint's streams against its base."""

    def __init__(self, source: StreamSource, base: ExactReference | None) -> None:
        self._source, self._base = source, base
        self._place = read_layout(source, 255)

    def reference(self, wanted: list[str]) -> ExactReference:
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
        codec, payload = self._source.get(names[0], kind)
        context = base_words(self._base, names)
        if context is not None and (context.size, context.dtype) != (out.size, out.dtype):
            raise CorruptFileError(f"The tensor {names[0]!r} does not have the size of its base.")
        codec_by_id(codec).decode(payload, out, context)
        return out
