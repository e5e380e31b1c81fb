"""Any tensor, bit for bit.

Each tensor that changed since the base costs its losslessly coded words: byte planes, exclusive-or with the
base's words, plain zstd, one repeated value or the raw bytes, whichever is smallest.  One that did not change
costs nothing; a digest of 128 bits finds that out without the base's values.

The reader's side holds every value.  The writer's side holds the digests, and values only of tensors small
enough that exclusive-or is worth the memory (`Exact.hold_bytes`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from torch import Tensor

from dynaquant_core.arithmetic import plainly
from dynaquant_core.coding import encode_smallest
from dynaquant_core.config import require
from dynaquant_core.methods.base import Hints, Reference, Stream, StreamSource
from dynaquant_core.methods.digests import digests_of
from dynaquant_core.methods.exact_reader import (
    OWN,
    POOL,
    SAME,
    ExactDecoder,
    ExactReference,
    Words,
    base_words,
    joined,
)
from dynaquant_core.methods.fixed import NoConfig, OnePoint
from dynaquant_core.methods.pooling import POOL_BYTES, grouped, write_layout
from dynaquant_core.methods.streams import chosen
from dynaquant_core.state import TensorSpec, words_of

__all__ = ["Exact", "ExactDraft", "ExactReference"]

PLAIN_CODECS: Final = ("constant", "planes", "zstd", "raw")
DELTA_CODECS: Final = ("constant", "planes_xor", "planes", "zstd", "raw")


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
        self._digests = digests_of(state)
        self._words = {name: words_of(state[name]) for name in state if self._changed(name)}
        small = [name for name, own in self._words.items() if own.nbytes <= POOL_BYTES]
        self._pools = list(grouped(small, lambda name: (roles.get(name), self._specs[name].dtype)).values())
        self._is_own = False
        self._held: dict[str, Words] | None = None
        self._streams: list[Stream] | None = None

    def _changed(self, name: str) -> bool:
        return self._ref.digest(name) != self._digests[name]

    @property
    @plainly
    def decoded(self) -> Iterator[tuple[str, Tensor]]:
        """The live tensors: what a reader gets is what they are."""
        for name, tensor in self._live.items():
            yield name, tensor.detach()

    @property
    def size(self) -> int:
        """Bytes of all streams: encoded to know it, and kept for `encode`."""
        if self._streams is None:
            self._hold()
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
        reference = ExactReference(self._specs, self._hold(), self._digests)
        return self._encoded() if self._streams is None else self._streams, reference

    def _hold(self) -> dict[str, Words]:
        """Values for the next delta: copies, or the copies that `detach` made."""
        if self._held is None:
            small = [name for name, spec in self._specs.items() if spec.nbytes <= self._hold_bytes]
            self._held = {name: self._ref.words[name] for name in small if name in self._ref.words}
            fresh = {name: self._words[name] for name in small if name in self._words}
            self._held |= fresh if self._is_own else {name: words.copy() for name, words in fresh.items()}
        return self._held

    def _encoded(self) -> Iterator[Stream]:
        place = {name: POOL + number for number, pool in enumerate(self._pools) for name in pool}
        alone = [name for name in self._words if name not in place]
        place |= dict.fromkeys(alone, OWN)
        yield write_layout([place.get(name, SAME) for name in self._specs])
        for pool in self._pools:
            yield self._stream("pool", pool)
        for name in alone:
            yield self._stream("values", [name])
            del self._words[name]

    def _stream(self, kind: str, names: list[str]) -> Stream:
        words = joined([self._words[name] for name in names])
        context = base_words(self._ref, names)
        candidates = PLAIN_CODECS if context is None else DELTA_CODECS
        return Stream(names[0], kind, *encode_smallest(words, context, candidates))


class Exact(OnePoint):
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
    spares_gradients = True

    def __init__(self, *, hold_bytes: int = 1 << 20) -> None:
        good = type(hold_bytes) is int and hold_bytes >= POOL_BYTES
        require(good, f"method exact: hold_bytes must be a whole number >= {POOL_BYTES}, got {hold_bytes!r}.")
        self.hold_bytes = hold_bytes

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
        return ExactDecoder(streams, base).reference(chosen(streams.specs, names))
