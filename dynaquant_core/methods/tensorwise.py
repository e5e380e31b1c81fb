"""A method that codes one tensor after another: the half of the protocol that all such methods share.

A method of this kind says what it decides for the whole model, how a tensor is coded, what a reader then
holds of it, and how that becomes a tensor, streams, and itself again.  Threads, laziness, keys, the layout
and the exact way out (`Space.beyond`) are here.

Two forms of a tensor must be told apart.  *Coded* is what a draft made and still has to write; *held* is what
a reader has afterwards, and all that the next checkpoint may build on.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Final, Generic, Protocol, TypeVar, cast

import numpy as np
from torch import Tensor

from dynaquant_core.arithmetic import plainly
from dynaquant_core.coding import encode_smallest
from dynaquant_core.errors import CorruptFileError, MissingBaseError
from dynaquant_core.methods.base import Hints, Reference, Space, Stream, StreamSource
from dynaquant_core.methods.pooling import read_layout, write_layout
from dynaquant_core.methods.streams import chosen, decode_stream
from dynaquant_core.methods.words import CODECS, Plain, plain_of
from dynaquant_core.state import TensorSpec, is_quantisable
from dynaquant_core.state.raw import empty_words, words_of
from dynaquant_core.threads import map_threads

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["Point", "TensorDraft", "TensorMethod", "TensorsHeld", "expect_base", "read_words"]

#: Places of a tensor in the layout: coded by the method, or kept bit for bit.
CODED: Final = 0
WORDS: Final = 1


class Point(Protocol):
    """A configuration: hashable, and one of them keeps everything bit for bit."""

    @property
    def exact(self) -> bool:
        """Whether every tensor is kept as it is: the last of `Space.beyond`."""
        ...

    def as_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        ...

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """Takes `as_dict` back."""
        ...


P = TypeVar("P", bound=Point)
C = TypeVar("C")
H = TypeVar("H")


class TensorMethod(ABC, Generic[P, C, H]):
    """The protocol `methods.base.Method` around what one tensor needs; P is its point, C coded, H held.

    Subclasses give ``name``, ``point`` and the abstract methods.  What takes one tensor is called from
    several threads at once and must not change the method.
    """

    name: str
    #: The class of its configurations.
    point: type[P]
    owns: frozenset[str] = frozenset({"weight"})
    spares_gradients = True
    #: Whether what is held has to be made from the base's; a method without deltas never asks for a base.
    builds_on_base: ClassVar[bool] = True
    #: Whether a tensor that has every bit of what the last checkpoint gave is written as it is held (`kept`,
    #: under any options), so that a frozen one takes its noise once and not again at every restore.
    keeps_still: ClassVar[bool] = False

    @abstractmethod
    def space(self, *, gradients: bool) -> Space:
        """The search space; the last of its ``beyond`` is exact."""

    @abstractmethod
    def code(self, name: str, tensor: Tensor, base: H | None, config: P, plan: Any) -> C | Plain:
        """Codes a live tensor, without keeping hold of its memory; ``base`` None: it stands alone.

        Words keep it bit for bit; the method meets them again in `adopt`.
        """

    def kept(self, held: H, base: H | None) -> C:  # noqa: ARG002
        """A tensor that is still what is held of it, coded as that; ``base`` as in `code`.

        Asked for where `keeps_still`; coded and held are one form by default.
        """
        return cast("C", held)

    @abstractmethod
    def hold(self, coded: C) -> H:
        """What a reader has after it."""

    @abstractmethod
    def value(self, held: H, spec: TensorSpec) -> Tensor:
        """The tensor that is held, on the CPU, in memory of its own."""

    @abstractmethod
    def write(self, name: str, coded: C) -> Iterable[Stream]:
        """The tensor's streams, each filed under ``name``."""

    @abstractmethod
    def read(self, source: StreamSource, name: str, spec: TensorSpec, base: H | None) -> H:
        """What `write` wrote: sizes from ``spec`` only, streams by `methods.streams.decode_stream`.

        Raises:
            CorruptFileError: the streams are not what `write` writes.
            MissingBaseError: they build on a base and ``base`` is None.
        """

    def adopt(self, tensor: Tensor) -> H | None:  # noqa: ARG002
        """What is held of a base's tensor that was kept bit for bit; None: the next one stands alone."""
        return None

    def plan(
        self,
        state: Mapping[str, Tensor],  # noqa: ARG002
        base: Mapping[str, H],  # noqa: ARG002
        config: P,  # noqa: ARG002
        hints: Hints,  # noqa: ARG002
    ) -> Any:
        """What is decided for all tensors together, before any is coded; nothing by default."""
        return None

    def config(self, data: Mapping[str, Any]) -> P:
        """Takes back what `Point.as_dict` wrote; raises ConfigError for anything else."""
        return self.point.from_dict(data)

    def options(self) -> dict[str, Any]:
        """Options that a reader needs; none by default."""
        return {}

    def accepts(self, tensor: Tensor) -> bool:
        """Floating matrices of at least 256 finite elements; the rest is stored exactly."""
        return is_quantisable(tensor)

    def draft(
        self, state: Mapping[str, Tensor], ref: Reference | None, config: P, hints: Hints
    ) -> TensorDraft[P, C, H]:
        """Drafts a checkpoint; nothing is coded before it is asked for."""
        base = ref if isinstance(ref, TensorsHeld) and self.builds_on_base else None
        last = hints.before if ref is None else ref
        if not (self.keeps_still and isinstance(last, TensorsHeld) and isinstance(last.method, type(self))):
            last = None
        return TensorDraft(self, config, state, base, hints, last)

    def decode(
        self, streams: StreamSource, ref: Reference | None, names: Iterable[str] | None = None
    ) -> TensorsHeld[H]:
        """Reads tensors back, in parallel.

        Raises:
            CorruptFileError: the streams are not what this method writes.
            MissingBaseError: they stand on a base that is not given.
        """
        base = ref if isinstance(ref, TensorsHeld) else None
        place, wanted = read_layout(streams, WORDS), chosen(streams.specs, names)

        def read(name: str) -> H | Plain:
            spec = streams.specs[name]
            if place[name] == WORDS:
                return read_words(streams, name, spec)
            return self.read(streams, name, spec, None if base is None else base.of(name, spec))

        tensors = dict(zip(wanted, map_threads(read, wanted), strict=True))
        return TensorsHeld(self, {name: streams.specs[name] for name in wanted}, tensors)


class TensorsHeld(Generic[H]):
    """What a reader holds of a checkpoint; a `Reference` (methods.base).

    Args:
        method: that made it.
        specs: by name.
        tensors: by name, as the method holds them, or words.
    """

    def __init__(
        self,
        method: TensorMethod[Any, Any, H],
        specs: Mapping[str, TensorSpec],
        tensors: Mapping[str, H | Plain],
    ) -> None:
        self.method, self.specs, self.tensors = method, dict(specs), dict(tensors)

    def of(self, name: str, spec: TensorSpec) -> H | None:
        """What the method holds of a tensor; None where it can make no use of what there is.

        Raises:
            CorruptFileError: it has another shape or dtype.
        """
        if name not in self.tensors:
            return None
        if self.specs[name] != spec:
            raise CorruptFileError(f"tensor {name}: {spec} does not fit its base {self.specs[name]}.")
        held = self.tensors[name]
        return self.method.adopt(held.tensor()) if isinstance(held, Plain) else held

    def still(self, name: str, tensor: Tensor) -> H | None:
        """What is held of a tensor that has every bit of it, and is not in words; None for any other."""
        held = self.tensors.get(name)
        if held is None or isinstance(held, Plain) or self.specs[name] != TensorSpec.of(tensor):
            return None
        alike = np.array_equal(words_of(tensor), words_of(self.method.value(held, self.specs[name])))
        return held if alike else None

    def items(self) -> Iterator[tuple[str, Tensor]]:
        """Yields (name, tensor), decoded one at a time, on the CPU."""
        for name in self.tensors:
            yield name, self._value(name)

    def state(self) -> dict[str, Tensor]:
        """All tensors, decoded in parallel."""
        return dict(zip(self.tensors, map_threads(self._value, list(self.tensors)), strict=True))

    def _value(self, name: str) -> Tensor:
        held = self.tensors[name]
        return held.tensor() if isinstance(held, Plain) else self.method.value(held, self.specs[name])


class TensorDraft(Generic[P, C, H]):
    """One candidate; see `methods.base.Draft`."""

    def __init__(
        self,
        method: TensorMethod[P, C, H],
        config: P,
        state: Mapping[str, Tensor],
        base: TensorsHeld[H] | None,
        hints: Hints,
        last: TensorsHeld[H] | None = None,
    ) -> None:
        self.config, self.is_key = config, base is None
        self._last, self._stills = last, hints.scratch.setdefault((method.name, "still"), {})
        self._method, self._base = method, base
        self._live: Mapping[str, Tensor] = state
        self._specs = {name: TensorSpec.of(tensor) for name, tensor in state.items()}
        below = {} if base is None else {name: base.of(name, spec) for name, spec in self._specs.items()}
        self._below = {name: held for name, held in below.items() if held is not None}
        self._plan = None if config.exact else method.plan(state, self._below, config, hints)
        self._coded: dict[str, C | Plain] = {}
        self._streams: dict[str, list[Stream]] = {}

    @property
    @plainly
    def decoded(self) -> Iterator[tuple[str, Tensor]]:
        """(name, tensor) as a reader would get them, on the live tensors' devices."""
        for name, tensor in self._live.items():
            yield name, self._value(self._code(name), self._specs[name]).to(tensor.device)

    @property
    def size(self) -> int:
        """Bytes of all streams: encoded to know it, and kept for `encode`."""
        names = list(self._specs)
        self._streams = dict(zip(names, map_threads(self._written, names), strict=True))
        streams = [self._layout(), *(stream for name in names for stream in self._streams[name])]
        return sum(len(stream.payload) for stream in streams)

    def detach(self) -> None:
        """Codes every tensor and lets go of the live ones."""
        map_threads(self._code, list(self._specs))
        self._live = {}

    def encode(self) -> tuple[Iterable[Stream], Reference]:
        """Streams, a tensor's in memory at once unless `size` was asked for, and what a reader then holds."""
        self.detach()
        held = {
            name: coded if isinstance(coded, Plain) else self._method.hold(coded)
            for name, coded in self._coded.items()
        }
        ordered = {name: held[name] for name in self._specs}
        return self._encoded(), TensorsHeld(self._method, self._specs, ordered)

    def _value(self, coded: C | Plain, spec: TensorSpec) -> Tensor:
        if isinstance(coded, Plain):
            return coded.tensor()
        return self._method.value(self._method.hold(coded), spec)

    def _encoded(self) -> Iterator[Stream]:
        yield self._layout()
        for name in self._specs:
            yield from self._written(name)

    def _layout(self) -> Stream:
        return write_layout([WORDS if isinstance(self._code(name), Plain) else CODED for name in self._specs])

    def _code(self, name: str) -> C | Plain:
        if name not in self._coded:
            tensor = self._live[name]
            if self.config.exact:
                self._coded[name] = plain_of(tensor, bf16=False)
            else:
                base = self._below.get(name)
                held = self._still(name, tensor)
                if held is not None:
                    self._coded[name] = self._method.kept(held, base)
                else:
                    self._coded[name] = self._method.code(name, tensor, base, self.config, self._plan)
        return self._coded[name]

    def _still(self, name: str, tensor: Tensor) -> H | None:
        """What is held of a tensor that is what the last checkpoint gave; looked at once a save."""
        if self._last is None:
            return None
        if name not in self._stills:
            self._stills[name] = self._last.still(name, tensor)
        found: H | None = self._stills[name]
        return found

    def _written(self, name: str) -> list[Stream]:
        if name in self._streams:
            return self._streams[name]
        coded = self._code(name)
        if isinstance(coded, Plain):
            return [Stream(name, "values", *encode_smallest(coded.bits, None, CODECS))]
        return list(self._method.write(name, coded))


def expect_base(base: H | None, name: str) -> H:
    """What the base holds of a tensor that was stored as a change.

    Raises:
        MissingBaseError: nothing.
    """
    if base is None:
        raise MissingBaseError(f"The tensor {name!r} is stored as a change, but no base holds it.")
    return base


def read_words(source: StreamSource, name: str, spec: TensorSpec) -> Plain:
    """A tensor that the layout has at `WORDS`.

    Raises:
        CorruptFileError: its stream is missing or damaged.
    """
    bits = empty_words(spec)
    decode_stream(source, name, "values", bits)
    return Plain(spec, bits, bf16=False)
