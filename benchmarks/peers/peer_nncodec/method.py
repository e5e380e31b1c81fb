"""NNCodec as a method of DynaQuant, so that a run can be restored from its files: as coarse as er allows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import torch
from safetensors.numpy import load as load_exact
from safetensors.numpy import save as save_exact
from torch import Tensor

from dynaquant_core.coding import codec_by_name
from dynaquant_core.config import FrozenSettings, require_number
from dynaquant_core.errors import CorruptFileError, MissingBaseError
from dynaquant_core.methods import Hints, Reference, Space, Stream, StreamSource, TensorSpec
from dynaquant_core.methods.streams import chosen
from dynaquant_core.state import fits_float32
from peer_nncodec.search import coarsest
from peer_nncodec.stream import COARSEST, FINEST, FIRST, Arrays, decode, encode, minus, plus

__all__ = ["Bound", "NNCodecMethod"]

#: The most careful point of the search is the boldest halved so often.
HALVINGS: Final = 16

#: Values from here on would not fit nncodec's integers at its finest step.
LARGEST: Final = 1024.0

#: Kinds of the one stream of a file: the weights themselves, their difference to the base, every bit.
KEY, UPDATE, EXACT = "key", "update", "exact"


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound(FrozenSettings):
    """One point: how much of what moved a file may miss.

    Args:
        er: squared error over the squared difference to what a reader held before, of a first file over the
            squared weights, all matrices together, as `er` of the experiments is (vectors, where there is no
            matrix); 0 keeps every bit.

    Raises:
        ConfigError: not in [0, 1].
    """

    er: float = 0.2

    def __post_init__(self) -> None:
        require_number("Bound", "er", self.er, 0.0, 1.0)


@dataclass(frozen=True, slots=True)
class Coded:
    """A stream, what a reader has after it, and the qp that it was made with."""

    kind: str
    stream: bytes
    arrays: Arrays
    qp: int


class Held:
    """What a reader holds: float32 arrays in the tensors' shapes, and the qp of the file, if known."""

    def __init__(self, arrays: Arrays, qp: int = FIRST) -> None:
        self.arrays, self.qp = arrays, qp

    def items(self) -> Iterator[tuple[str, Tensor]]:
        """Yields (name, tensor), each a copy."""
        for name, array in self.arrays.items():
            yield name, torch.from_numpy(array.copy())

    def state(self) -> dict[str, Tensor]:
        """All tensors, copied."""
        return dict(self.items())


class NNCodecMethod:
    """NNCodec 2.1.3, a full file first, then differences: the coarsest ``qp`` within the point's ``er``.

    Args:
        er: boldest point of the search, which takes the boldest that keeps the threshold.

    Raises:
        ConfigError: ``er`` is not in [0, 1].
    """

    name = "nncodec"
    owns = frozenset({"weight"})
    spares_gradients = True

    def __init__(self, *, er: float = 0.2) -> None:
        self._boldest = Bound(er=er)

    def options(self) -> dict[str, Any]:
        """The boldest point."""
        return self._boldest.as_dict()

    def config(self, data: Mapping[str, Any]) -> Bound:
        """Takes back what `Bound.as_dict` wrote."""
        return Bound.from_dict(data)

    def space(self, *, gradients: bool) -> Space:  # noqa: ARG002
        """Bounds that halve from one to the next."""
        bounds = tuple(self._boldest.er / 2**halved for halved in range(HALVINGS, -1, -1))
        exact = Bound(er=0.0)
        return Space(build=Bound, axes={"er": bounds}, variants={}, refine={}, beyond=(exact,), default=exact)

    def accepts(self, tensor: Tensor) -> bool:
        """Float32 of any shape whose values fit its integers; the rest is stored exactly."""
        fits = tensor.dtype == torch.float32 and tensor.numel() > 1 and fits_float32(tensor)
        return fits and float(tensor.detach().abs().max()) < LARGEST

    def accepts_vector(self, tensor: Tensor) -> bool:
        """The same: `TakesVectors`."""
        return self.accepts(tensor)

    def draft(
        self,
        state: Mapping[str, Tensor],
        ref: Reference | None,
        config: Bound,
        hints: Hints,
    ) -> Update:
        """Drafts ``state`` against ``ref``; nothing is coded before it is asked for."""
        base = ref if isinstance(ref, Held) else None
        before = hints.before if isinstance(hints.before, Held) else base
        return Update(state, base, before, config)

    def decode(
        self, streams: StreamSource, ref: Reference | None, names: Iterable[str] | None = None
    ) -> Held:
        """Decodes the one stream, which holds all tensors.

        Raises:
            CorruptFileError: it is not what this method writes, or not of the base.
            MissingBaseError: it is a difference, and the base is not given or lacks a tensor.
        """
        wanted = chosen(streams.specs, names)
        kind = next((kind for kind in (KEY, UPDATE, EXACT) if streams.has("", kind)), KEY)
        payload = bytes(streams.get("", kind)[1])
        arrays = load_exact(payload) if kind == EXACT else _decoded(payload)
        for name in wanted:
            _expect(arrays, name, streams.specs[name])
        if kind != UPDATE:
            return Held({name: arrays[name] for name in wanted})
        base = _base(ref, wanted)
        for name in wanted:
            _expect(base, name, streams.specs[name])
        return Held(plus(base, {name: arrays[name] for name in wanted}))


class Update:
    """One candidate; see `methods.base.Draft`."""

    def __init__(
        self, state: Mapping[str, Tensor], base: Held | None, before: Held | None, config: Bound
    ) -> None:
        self.config, self.is_key = config, base is None or config.er == 0
        self._live, self._base, self._before = state, base, before
        self._coded: Coded | None = None

    @property
    def decoded(self) -> Iterator[tuple[str, Tensor]]:
        """(name, tensor) as a reader would get them, on the live tensors' devices."""
        live = dict(self._live)
        for name, tensor in Held(self._once().arrays).items():
            yield name, tensor.to(live[name].device)

    @property
    def size(self) -> int:
        """Bytes of the stream."""
        return len(self._once().stream)

    def detach(self) -> None:
        """Codes, and lets go of the live tensors."""
        self._once()
        self._live = {}

    def encode(self) -> tuple[Iterable[Stream], Reference]:
        """The stream, and what a reader then holds."""
        self.detach()
        coded = self._once()
        stream = Stream("", coded.kind, codec_by_name("raw").id, coded.stream)
        return iter([stream]), Held(coded.arrays, coded.qp)

    def _once(self) -> Coded:
        if self._coded is None:
            self._coded = _code(self._live, self._base, self._before, self.config)
        return self._coded


def _code(state: Mapping[str, Tensor], base: Held | None, before: Held | None, config: Bound) -> Coded:
    arrays = {name: tensor.detach().cpu().numpy().copy() for name, tensor in state.items()}
    if config.er == 0 or not arrays:
        return Coded(EXACT, save_exact(arrays), arrays, FIRST)
    held = None if base is None else _base(base, list(arrays))
    difference = minus(arrays, held)
    was = None if before is None or before.arrays.keys() != arrays.keys() else before.arrays
    allowed = config.er * _squares(minus(arrays, was))

    def tried(qp: int) -> tuple[bytearray, Arrays]:
        stream = encode(difference, qp)
        return stream, plus(held, decode(stream))

    def met(candidate: tuple[bytearray, Arrays]) -> bool:
        return _squares(minus(arrays, candidate[1])) <= allowed

    guess = FIRST if base is None else base.qp
    qp, (stream, decoded), _ = coarsest(tried, met, FINEST, COARSEST, guess)
    ordered = {name: decoded[name] for name in arrays}
    return Coded(KEY if held is None else UPDATE, bytes(stream), ordered, qp)


def _squares(arrays: Arrays) -> float:
    """Of the matrices: a few vectors, such as scales near 1, may move further than all the weights."""
    counted = [array for array in arrays.values() if array.ndim > 1] or list(arrays.values())
    return float(sum(np.square(array, dtype=np.float64).sum() for array in counted))


def _decoded(payload: bytes) -> Arrays:
    try:
        return decode(bytearray(payload))
    except Exception as error:
        raise CorruptFileError(f"nncodec cannot read its stream ({error!s:.200}).") from error


def _expect(arrays: Arrays, name: str, spec: TensorSpec) -> None:
    if name not in arrays or arrays[name].shape != tuple(spec.shape):
        found = arrays[name].shape if name in arrays else "nothing"
        raise CorruptFileError(f"tensor {name}: {tuple(spec.shape)} was expected, nncodec has {found}.")


def _base(ref: Reference | None, names: list[str]) -> Arrays:
    if not isinstance(ref, Held) or not ref.arrays.keys() >= set(names):
        raise MissingBaseError("nncodec: a difference, but no base holds all of its tensors.")
    return {name: ref.arrays[name] for name in names}
