"""Policies for optimizer moments: ``"8bit"`` (logarithmic blocks, entropy coded) and ``"exact"``.

A moment is written whole at every checkpoint: between two of them nearly every code changes, and codes held
as a base would cost a byte a value.  One that did not change at all costs nothing (found by its digest).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dynaquant_core.coding import codec_by_id, encode_smallest
from dynaquant_core.config import require_choice
from dynaquant_core.errors import CorruptFileError, MissingBaseError
from dynaquant_core.methods.base import Hints, Method, Reference, Space, Stream, StreamSource
from dynaquant_core.methods.exact import Exact, words_digest
from dynaquant_core.methods.fixed import NoConfig, fixed_space
from dynaquant_core.methods.pooling import POOL_BYTES, grouped, read_layout, sliced, write_layout
from dynaquant_core.quantize import blocks
from dynaquant_core.state import TensorSpec, dtype_of, empty_words, fits_float32, words_of
from dynaquant_core.threads import map_threads

__all__ = ["MOMENTS", "BlocksDraft", "BlocksReference", "LogBlocks", "moments_method"]

#: Places of a tensor in the layout: unchanged, its own stream, the pool of the signed or of the others.
SAME: Final = 0
OWN: Final = 1
POOL_SIGNED: Final = 2
POOL_POSITIVE: Final = 3

CODE_CODECS: Final = ("constant", "rans", "raw")
SCALE_CODECS: Final = ("constant", "planes", "zstd", "raw")

#: Shorter tensors go to the exact part: there is nothing to gain.
MIN_ELEMENTS: Final = 256


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
            yield name, decoded(self.coded[name], spec)

    def state(self) -> dict[str, Tensor]:
        """All tensors, decoded."""
        return dict(self.items())


def decoded(coded: Coded, spec: TensorSpec) -> Tensor:
    """The tensor of some codes, on the CPU."""
    out = torch.empty(spec.shape, dtype=dtype_of(spec.dtype))
    blocks.decode(coded.codes, coded.scales, out)
    return out


def is_signed(tensor: Tensor) -> bool:
    """Whether a value is negative; second moments have none and get the code that never reaches zero."""
    return bool(tensor.detach().min() < 0)


class BlocksDraft:
    """A draft of moments in 8 bits; see `methods.base.Draft`.

    Args:
        config: the one point there is.
        state: live tensors by name.
        ref: the base, or None for a key checkpoint.
    """

    def __init__(self, config: NoConfig, state: Mapping[str, Tensor], ref: BlocksReference | None) -> None:
        self.config, self.is_key = config, ref is None
        self._live: Mapping[str, Tensor] = state
        self._specs = {name: TensorSpec.of(tensor) for name, tensor in state.items()}
        digests = map_threads(lambda tensor: words_digest(words_of(tensor)), list(state.values()))
        self._digests = dict(zip(state, digests, strict=True))
        known = {} if ref is None else ref.digests
        self._changed = [name for name in state if known.get(name) != self._digests[name]]
        self._coded: dict[str, Coded] = {}
        self._signed: dict[str, bool] = {}
        self._streams: list[Stream] | None = None

    @property
    def decoded(self) -> Iterator[tuple[str, Tensor]]:
        """(name, tensor) as a reader would get them, on the live tensors' devices."""
        for name, tensor in self._live.items():
            yield name, decoded(self._code(name), self._specs[name]).to(tensor.device)

    @property
    def size(self) -> int:
        """Bytes of all streams: encoded to know it, and kept for `encode`."""
        if self._streams is None:
            self._streams = list(self._encoded())
        return sum(len(stream.payload) for stream in self._streams)

    def detach(self) -> None:
        """Codes every tensor that changed, a byte a value, and lets go of the live ones."""
        for name in self._changed:
            self._code(name)
        self._live = {}

    def encode(self) -> tuple[Iterable[Stream], Reference]:
        """Streams, one in memory at a time unless `size` was asked for, and what the writer then knows."""
        self.detach()
        streams = self._encoded() if self._streams is None else self._streams
        return streams, BlocksReference(self._specs, {}, self._digests)

    def _code(self, name: str) -> Coded:
        if name not in self._coded:
            tensor = self._live[name]
            self._signed[name] = is_signed(tensor)
            self._coded[name] = Coded(*blocks.encode(tensor, self._signed[name]))
        return self._coded[name]

    def _encoded(self) -> Iterator[Stream]:
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
        for name in (name for name in coded if name not in place):
            yield Stream(name, "codes", *encode_smallest(coded[name].codes, None, CODE_CODECS))


class LogBlocks:
    """The method ``"8bit"``: moments in logarithmic blocks.

    The error is within 5% of each value (`quantize.blocks` states it in full); what was zero, positive or
    negative stays so, and a second moment never becomes zero.

    Example:
        >>> method = LogBlocks()
        >>> moments = {"exp_avg_sq": torch.full((512,), 0.5)}
        >>> streams, _ = method.draft(moments, None, NoConfig(), Hints()).encode()
        >>> [stream.kind for stream in streams]
        ['layout', 'scales', 'pool']
    """

    name = "8bit"
    owns = frozenset({"moment"})

    def options(self) -> dict[str, Any]:
        """None."""
        return {}

    def config(self, data: Mapping[str, Any]) -> NoConfig:
        """Takes back what `NoConfig.as_dict` wrote."""
        return NoConfig.from_dict(data)

    def space(self, *, gradients: bool) -> Space:  # noqa: ARG002
        """One point."""
        return fixed_space()

    def accepts(self, tensor: Tensor) -> bool:
        """Finite floating tensors of at least `MIN_ELEMENTS` elements, within float32's range."""
        return tensor.numel() >= MIN_ELEMENTS and fits_float32(tensor)

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
        wanted = set(streams.specs if names is None else names)
        return _Decoder(streams, base).reference([name for name in streams.specs if name in wanted])


class _Decoder:
    """Reads one checkpoint's streams against its base."""

    def __init__(self, source: StreamSource, base: BlocksReference | None) -> None:
        self._source, self._base = source, base
        self._place = read_layout(source, POOL_POSITIVE)
        self._scales = self._read_scales()

    def reference(self, wanted: list[str]) -> BlocksReference:
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
        codec, payload = self._source.get("", "scales")
        codec_by_id(codec).decode(payload, words)
        return sliced(words.view(np.int16), lengths)

    def _read(self, name: str, kind: str, length: int) -> NDArray[np.uint8]:
        codes = empty_words(TensorSpec((length,), "uint8"))
        codec, payload = self._source.get(name, kind)
        codec_by_id(codec).decode(payload, codes)
        return codes


#: ``moments=`` -> the method that writes them, unless the weights' method owns moments itself.
MOMENTS: Final[Mapping[str, Callable[[], Method]]] = {"8bit": LogBlocks, "exact": Exact}


def moments_method(name: str) -> Method:
    """The method of a moments policy.

    Raises:
        ConfigError: there is no policy of that name.

    Example:
        >>> moments_method("8bit").name
        '8bit'
    """
    require_choice("store", "moments", name, tuple(MOMENTS))
    return MOMENTS[name]()
