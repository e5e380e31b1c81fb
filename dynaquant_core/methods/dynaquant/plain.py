"""Beyond codebooks: tensors in bfloat16, or bit for bit.

A threshold is a promise: where no codebook keeps it, these do, at 2 to 1 and about 1.2 to 1.  So is the cap
on a tensor's error (`book`), where it is one tensor that no codebook serves.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import torch
from torch import Tensor

from dynaquant_core.arithmetic import plainly
from dynaquant_core.coding import encode_smallest
from dynaquant_core.config import Config
from dynaquant_core.methods.base import Reference, Stream
from dynaquant_core.methods.dynaquant.held import Held, Scope
from dynaquant_core.methods.dynaquant.layout import Layout, Row
from dynaquant_core.methods.words import CODECS, Plain, plain_of

__all__ = ["PlainDraft", "word_stream"]


class PlainDraft:
    """A draft in which every tensor is kept in bfloat16 or exactly; see `methods.base.Draft`.

    Args:
        config: the point; its ``bins`` is "bf16" or "exact".
        state: live tensors by name.
        ref: the base, or None for a key checkpoint.
        scope: the chain's codebook scope, carried on for later deltas.
        epoch: of the run's draws, carried on likewise.
    """

    def __init__(
        self, config: Config, state: Mapping[str, Tensor], ref: Held | None, scope: Scope, epoch: int | None
    ) -> None:
        self.config, self.ref, self.scope, self.epoch = config, ref, scope, epoch
        self.is_key = ref is None
        self.bf16 = config.bins == "bf16"
        self._live: Mapping[str, Tensor] = state
        self._names = list(state)
        self._held: dict[str, Plain] = {}
        self._streams: list[Stream] | None = None

    @property
    @plainly
    def decoded(self) -> Iterator[tuple[str, Tensor]]:
        """(name, tensor) as a reader would get them."""
        for name in self._names:
            device = self._live[name].device if name in self._live else torch.device("cpu")
            yield name, self._plain(name).tensor(device)

    @property
    def size(self) -> int:
        """Bytes of all streams: encoded to know it, and kept for `encode`."""
        return sum(len(stream.payload) for stream in self._encoded())

    def _plain(self, name: str) -> Plain:
        if name not in self._held:
            self._held[name] = plain_of(self._live[name], bf16=self.bf16)
        return self._held[name]

    def detach(self) -> None:
        """Copies every tensor's bits and lets go of the live tensors."""
        for name in self._names:
            self._plain(name)
        self._live = {}

    def encode(self) -> tuple[Iterable[Stream], Reference]:
        """The streams and what a reader holds after them."""
        self.detach()
        held = {name: self._held[name] for name in self._names}
        return self._encoded(), Held(held, self.scope, epoch=self.epoch)

    def _encoded(self) -> list[Stream]:
        if self._streams is None:
            letter = "h" if self.bf16 else "e"
            layout = Layout([Row(letter) for _ in self._names], 0, self.scope)
            self._streams = [layout.stream(), *map(self._stream, self._names)]
        return self._streams

    def _stream(self, name: str) -> Stream:
        return word_stream(name, self._plain(name), self.ref)


def word_stream(name: str, plain: Plain, ref: Held | None) -> Stream:
    """The stream of a tensor that is kept as words, given the base, which may hold it in the same way."""
    base = None if ref is None else ref.tensors.get(name)
    context = base.bits if isinstance(base, Plain) and base.bf16 == plain.bf16 else None
    return Stream(name, "values", *encode_smallest(plain.bits, context, CODECS))
