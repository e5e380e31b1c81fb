"""What a reader holds of moments in 8 bits, and how it is read from streams."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from dynaquant_core.errors import CorruptFileError, MissingBaseError
from dynaquant_core.methods.base import StreamSource
from dynaquant_core.methods.pooling import POOL_BYTES, grouped, read_layout, require_floating, sliced
from dynaquant_core.methods.streams import decode_stream
from dynaquant_core.quantize import blocks
from dynaquant_core.state import TensorSpec, empty_tensor, empty_words
from dynaquant_core.threads import map_threads

__all__ = [
    "OWN",
    "POOL_POSITIVE",
    "POOL_SIGNED",
    "SAME",
    "BlocksDecoder",
    "BlocksReference",
    "Coded",
    "coded_tensor",
]

#: Places of a tensor in the layout: unchanged, its own stream, the pool of the signed or of the others.
SAME: Final = 0
OWN: Final = 1
POOL_SIGNED: Final = 2
POOL_POSITIVE: Final = 3


class Coded(NamedTuple):
    """codes: uint8[n]; scales: int16, one a block (`quantize.blocks`)."""

    codes: NDArray[np.uint8]
    scales: NDArray[np.int16]


@dataclass(slots=True)
class BlocksReference:
    """Codes of a checkpoint's moments (a reader's side) or their digests (a writer's); a `Reference`.

    Args:
        specs: shape and dtype of the tensors that `items` yields.
        coded: by name.
        digests: of the tensors as they were before coding, by name.
    """

    specs: dict[str, TensorSpec]
    coded: dict[str, Coded]
    digests: dict[str, bytes] = field(default_factory=dict)

    def items(self) -> Iterator[tuple[str, Tensor]]:
        """Yields (name, tensor), decoded one at a time.

        Raises:
            MissingBaseError: this is a writer's reference, which holds no codes.
        """
        for name, spec in self.specs.items():
            if name not in self.coded:
                raise MissingBaseError(f"The codes of {name!r} are not held; load its checkpoint first.")
            yield name, coded_tensor(self.coded[name], spec)

    def state(self) -> dict[str, Tensor]:
        """All tensors, decoded."""
        return dict(self.items())


def coded_tensor(coded: Coded, spec: TensorSpec) -> Tensor:
    """The tensor of some codes, on the CPU."""
    out = empty_tensor(spec)
    blocks.decode(coded.codes, coded.scales, out)
    return out


class BlocksDecoder:
    """Reads one checkpoint's streams against its base."""

    def __init__(self, source: StreamSource, base: BlocksReference | None) -> None:
        require_floating(source)
        self._source, self._base = source, base
        self._place = read_layout(source, POOL_POSITIVE)
        self._scales = self._read_scales()

    def reference(self, wanted: list[str]) -> BlocksReference:
        """Codes of the wanted tensors; pools are read whole."""
        pooled = (name for name, place in self._place.items() if place >= POOL_SIGNED)
        pools = grouped(pooled, self._place.__getitem__)
        alone = [name for name in wanted if self._place[name] == OWN]
        codes: dict[str, NDArray[np.uint8]] = {}
        for members in map_threads(self._pool, list(pools.values())):
            codes |= members
        codes |= dict(zip(alone, map_threads(self._alone, alone), strict=True))
        coded = {name: self._coded(name, codes) for name in wanted}
        return BlocksReference({name: self._source.specs[name] for name in wanted}, coded)

    def _coded(self, name: str, codes: Mapping[str, NDArray[np.uint8]]) -> Coded:
        if self._place[name] != SAME:
            return Coded(codes[name], self._scales[name])
        coded = None if self._base is None else self._base.coded.get(name)
        if coded is None:
            raise MissingBaseError(f"The moment {name!r} is stored as unchanged, but no base holds it.")
        if coded.codes.size != self._numel(name):
            raise CorruptFileError(f"The moment {name!r} has another size than its base.")
        return coded

    def _numel(self, name: str) -> int:
        return self._source.specs[name].numel

    def _alone(self, name: str) -> NDArray[np.uint8]:
        return self._read(name, "codes", self._numel(name))

    def _pool(self, names: list[str]) -> dict[str, NDArray[np.uint8]]:
        if max(map(self._numel, names)) > POOL_BYTES:
            raise CorruptFileError(f"The pool of {names[0]!r} holds a tensor that is too large for it.")
        lengths = {name: self._numel(name) for name in names}
        return sliced(self._read(names[0], "pool", sum(lengths.values())), lengths)

    def _read_scales(self) -> dict[str, NDArray[np.int16]]:
        present = [name for name, place in self._place.items() if place != SAME]
        if not present:
            return {}
        lengths = {name: blocks.scale_count(self._numel(name)) for name in present}
        words = empty_words(TensorSpec((sum(lengths.values()),), "uint16"))
        decode_stream(self._source, "", "scales", words)
        return sliced(words.view(np.int16), lengths)

    def _read(self, name: str, kind: str, length: int) -> NDArray[np.uint8]:
        codes = empty_words(TensorSpec((length,), "uint8"))
        decode_stream(self._source, name, kind, codes)
        return codes
