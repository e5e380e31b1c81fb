"""The policy ``"8bit"``: moments in logarithmic blocks of 8 bits, entropy coded.

A moment is written whole at every checkpoint: between two of them nearly every code changes, and codes held
as a base would cost a byte a value.  One that did not change at all costs nothing (found by its digest).

Both averages of centred RMSprop are not taken at all (`policies.stay_exact`): 5% of each can be more than
the difference that it takes the root of.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

import numpy as np
from torch import Tensor

from dynaquant_core.coding import encode_smallest
from dynaquant_core.methods.base import Hints, Reference, Stream, StreamSource
from dynaquant_core.methods.blocks_reader import (
    OWN,
    POOL_POSITIVE,
    POOL_SIGNED,
    SAME,
    BlocksDecoder,
    BlocksReference,
    Coded,
    coded_tensor,
)
from dynaquant_core.methods.fixed import NoConfig, OnePoint
from dynaquant_core.methods.moments.changed import ChangedDraft
from dynaquant_core.methods.pooling import POOL_BYTES, grouped, write_layout
from dynaquant_core.methods.streams import chosen
from dynaquant_core.quantize import blocks
from dynaquant_core.state import TensorSpec, has_range, never_falls

__all__ = ["BlocksDraft", "BlocksReference", "LogBlocks", "is_signed"]

CODE_CODECS: Final = ("constant", "rans", "raw")
SCALE_CODECS: Final = ("constant", "planes", "zstd", "raw")

#: Shorter tensors go to the exact part: there is nothing to gain.
MIN_ELEMENTS: Final = 256


def is_signed(tensor: Tensor) -> bool:
    """Whether a value is negative; second moments have none and get the code that never reaches zero."""
    return bool(tensor.detach().min() < 0)


class BlocksDraft(ChangedDraft[Coded]):
    """A draft of moments in 8 bits; see `methods.base.Draft`.

    Args:
        config: the one point there is.
        state: live tensors by name.
        ref: the base, or None for a key checkpoint.
    """

    def __init__(self, config: NoConfig, state: Mapping[str, Tensor], ref: BlocksReference | None) -> None:
        super().__init__(config, state, None if ref is None else ref.digests)
        self._signed: dict[str, bool] = {}

    def encode(self) -> tuple[Iterable[Stream], Reference]:
        """Streams, one in memory at a time unless `size` was asked for, and what the writer then knows."""
        self.detach()
        streams = self._encoded(forget=True) if self._streams is None else self._streams
        return streams, BlocksReference(self._specs, {}, self._digests)

    def _encode(self, tensor: Tensor, name: str) -> Coded:
        signed = self._signed[name] = is_signed(tensor)
        drawn = not (signed or never_falls(name))
        return Coded(*blocks.encode(tensor, signed, key=self._key(name) if drawn else None))

    def _decode(self, coded: Coded, spec: TensorSpec) -> Tensor:
        return coded_tensor(coded, spec)

    def _encoded(self, *, forget: bool) -> Iterator[Stream]:
        coded = {name: self._code(name) for name in self._changed}
        small = [name for name in coded if coded[name].codes.nbytes <= POOL_BYTES]
        pools = grouped(small, lambda name: POOL_SIGNED if self._signed[name] else POOL_POSITIVE)
        place = {name: number for number, names in pools.items() for name in names}
        yield write_layout([place.get(name, OWN if name in coded else SAME) for name in self._specs])
        if coded:
            scales = np.concatenate([own.scales for own in coded.values()]).view(np.uint16)
            yield Stream("", "scales", *encode_smallest(scales, None, SCALE_CODECS))
        for names in pools.values():
            codes = np.concatenate([coded[name].codes for name in names])
            yield Stream(names[0], "pool", *encode_smallest(codes, None, CODE_CODECS))
        for name in [name for name in coded if name not in place]:
            yield Stream(name, "codes", *encode_smallest(coded[name].codes, None, CODE_CODECS))
            if forget:
                del coded[name], self._coded[name]


class LogBlocks(OnePoint):
    """The method ``"8bit"``: moments in logarithmic blocks.

    First moments are within 5% of each value, second ones within 9.1% and right on average, in full in
    `quantize.blocks`; what was zero, positive or negative stays so, and a second moment never becomes zero.
    The largest second moments so far (AMSGrad's) are within 5%: what a draw added to them would stay.
    It takes tensors as they are given: a store keeps what centred RMSprop subtracts, and what from, in its
    exact part.

    Example:
        >>> import torch
        >>> method = LogBlocks()
        >>> moments = {"exp_avg_sq": torch.full((512,), 0.5)}
        >>> streams, _ = method.draft(moments, None, NoConfig(), Hints()).encode()
        >>> [stream.kind for stream in streams]
        ['layout', 'scales', 'pool']
    """

    name = "8bit"
    owns = frozenset({"moment"})

    def accepts(self, tensor: Tensor) -> bool:
        """Floating tensors of at least `MIN_ELEMENTS` elements, whose values float32 tells apart."""
        return tensor.numel() >= MIN_ELEMENTS and has_range(tensor)

    def draft(
        self,
        state: Mapping[str, Tensor],
        ref: Reference | None,
        config: NoConfig,
        hints: Hints,  # noqa: ARG002
    ) -> BlocksDraft:
        """Drafts a checkpoint; reads every tensor once for its digest."""
        return BlocksDraft(config, state, ref if isinstance(ref, BlocksReference) else None)

    def decode(
        self, streams: StreamSource, ref: Reference | None, names: Iterable[str] | None = None
    ) -> BlocksReference:
        """Reads codes back; pools are always read whole.

        Raises:
            CorruptFileError: the streams are not what this method writes.
            MissingBaseError: they stand on a base that is not given.
        """
        base = ref if isinstance(ref, BlocksReference) else None
        return BlocksDecoder(streams, base).reference(chosen(streams.specs, names))
