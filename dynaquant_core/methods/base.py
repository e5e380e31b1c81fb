"""The protocol that every method follows, and the small types it speaks in.

A *method* decides what a reader gets back instead of the true tensors.  It is asked for drafts (one per
candidate configuration); the draft that is chosen is encoded into streams; a reader decodes streams against
what it held before.  Search and store see a method through this page only.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf, sqrt
from typing import Any, Protocol, runtime_checkable

from torch import Tensor

from dynaquant_core.state.spec import TensorSpec

__all__ = [
    "Draft",
    "FitsSpace",
    "Healing",
    "Hints",
    "Merging",
    "Method",
    "Reference",
    "Rejoins",
    "Space",
    "Stream",
    "StreamSource",
    "TakesVectors",
    "TensorSpec",
    "spares_gradients",
]


@dataclass(frozen=True, slots=True)
class Stream:
    """One run of bytes in a checkpoint file.

    Args:
        name: the tensor it belongs to; "" = shared by all tensors of the part.
        kind: the method's own word for it ("codes", "centres", "protected", "values").
        codec: id of the codec that wrote ``payload``.
        payload: the bytes.
    """

    name: str
    kind: str
    codec: int
    payload: bytes


class StreamSource(Protocol):
    """Where a decoder reads streams from: a file whose checksums are verified, or a table in memory."""

    specs: Mapping[str, TensorSpec]

    def get(self, name: str, kind: str) -> tuple[int, memoryview]:
        """Returns (codec id, payload); raises CorruptFileError where the stream is missing."""
        ...

    def has(self, name: str, kind: str) -> bool:
        """Whether the stream exists."""
        ...


@dataclass(slots=True)
class Hints:
    """What may help a method beside the tensors; all of it optional.

    Args:
        gradients: EMA of the gradient by tensor name, same shape as the tensor.
        fisher: mean squared gradient by tensor name, as the optimizer knows it; looked up when needed.
        layer_types: "convolution", "attention", "linear", "embedding" or "other", by tensor name.
        roles: "weight", "moment" or "exact" by tensor name; small tensors are pooled within a role.
        moments: kind ("exp_avg") -> name of the moment by weight name, of moments that the method takes.
        models: how many models of the state are trained, as far as that is known.
        moved: how far tensors that an optimizer trains have moved in this life of the run, by name: root mean
            square over the spread of their values; as far as a search knows it.
        before: what a reader held after the run's last checkpoint of this method, also where the next must
            be a key; the method may have had other options, and its tensors other names and specs.
        scratch: lives as long as one save; a method shares sketches between drafts through it.
    """

    gradients: Mapping[str, Tensor] = field(default_factory=dict)
    fisher: Mapping[str, float] = field(default_factory=dict)
    layer_types: Mapping[str, str] = field(default_factory=dict)
    roles: Mapping[str, str] = field(default_factory=dict)
    moments: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    models: int = 1
    moved: Mapping[str, float] = field(default_factory=dict)
    before: Reference | None = None
    scratch: dict[Hashable, Any] = field(default_factory=dict)


@runtime_checkable
class TakesVectors(Protocol):
    """A method that also takes tensors of one dimension, where an optimizer trains them."""

    def accepts_vector(self, tensor: Tensor) -> bool:
        """Whether this method wants such a tensor."""
        ...


@runtime_checkable
class Reference(Protocol):
    """What a reader holds after a checkpoint; opaque to search and store."""

    def items(self) -> Iterator[tuple[str, Tensor]]:
        """Yields (name, tensor), decoded one at a time, on the CPU, in the tensor's own dtype and shape."""
        ...

    def state(self) -> dict[str, Tensor]:
        """All tensors, decoded."""
        ...


@runtime_checkable
class Rejoins(Protocol):
    """A reference that counts as the start of a life of the run where it was read from a file."""

    def rejoin(self, newest: Reference) -> None:
        """Tells that it is none: the run that wrote it went on to ``newest``, and builds on it again."""
        ...


@runtime_checkable
class Merging(Protocol):
    """A method that can write one link of a chain in place of several.

    Attributes:
        super_step: how many links a store makes one of, in the background, where retention no longer wants
            those between; 0: it leaves chains as they are.
    """

    super_step: int

    def merge(self, links: Sequence[StreamSource], base: Reference) -> Iterable[Stream]:
        """Streams that decode, against ``base``, to what a reader of all links holds.

        Args:
            links: of at least one checkpoint, oldest first, each written against the one before; read on
                demand.
            base: what a reader holds before the first.

        Raises:
            CorruptFileError: the links are not what this method writes.
        """
        ...


class Draft(Protocol):
    """One candidate: what a reader would get, what it would cost, and how to write it."""

    config: Any
    is_key: bool

    @property
    def decoded(self) -> Iterable[tuple[str, Tensor]]:
        """(name, tensor) pairs, one at a time, on the device of the live tensors: what a reader would get."""
        ...

    @property
    def size(self) -> int:
        """Bytes of all streams, within 2% (from counts where the method can)."""
        ...

    def detach(self) -> None:
        """Makes the draft independent of the live tensors, so that `encode` may run on another thread."""
        ...

    def encode(self) -> tuple[Iterable[Stream], Reference]:
        """The streams, produced lazily, and what a reader holds after them (complete at once)."""
        ...


@dataclass(frozen=True, slots=True)
class Healing:
    """Noise over squared movement that training takes out again, by what it costs (ours).

    Noise far above the movement stays, and its cost with it; so the product of both is bounded, and noise
    that costs little may be wide (docs/healing.md).

    Args:
        least: heals whatever it costs.
        remains: noise times degradation, at most.
        most: whatever it costs.

    Example:
        >>> healing = Healing(least=5.0, remains=0.5, most=100.0)
        >>> [healing.excess(10.0, cost) <= 1.0 for cost in (0.01, 0.05, 0.06)]
        [True, True, False]
        >>> healing.excess(5.0, 0.5), healing.excess(200.0, -0.01)
        (1.0, 2.0)
    """

    least: float
    remains: float
    most: float

    def excess(self, noise: float, cost: float) -> float:
        """Noise as a share of what is allowed; it grows with the noise where degradation does.

        Args:
            noise: over the squared movement.
            cost: degradation, a share, with its standard error added: chance must not make noise look free.
        """
        if noise <= 0.0 or noise == inf:
            return max(0.0, noise)
        left = sqrt(noise * max(cost, 0.0) / self.remains)  # both go with the square of a step
        return max(noise / self.most, min(noise / self.least, left))


@dataclass(frozen=True, slots=True)
class Space:
    """The points a search may try.

    Args:
        build: makes a config of keyword arguments (one per axis).
        axes: monotone axes, each from careful to bold: quality falls, ratio rises.
        variants: axes without an order (the pruning metric); the cube is searched once per combination.
        refine: axes tried on the winner only, careful value first (the embedding bins).
        beyond: configs for when nothing in the cube meets the threshold, bold to careful; the last is exact.
        default: the fixed, careful point used without an evaluation.
        rises: doublings of degradation to expect of a bold step, by ordered axis; where not given, one.
        near: steps on an axis that count as near, if more than the search's own.
        max_noise: noise that a candidate may add, over the squared movement of this life of the training,
            where that is known, whatever it costs or by that; None: any.  The most careful place and what
            lies beyond may be taken always.
        by_learnt: whether the threshold is a share of what the model has learnt, where that is less than its
            metric comes to (`search.learnt`).
    """

    build: Callable[..., Any]
    axes: Mapping[str, tuple[Any, ...]]
    variants: Mapping[str, tuple[Any, ...]]
    refine: Mapping[str, tuple[Any, ...]]
    beyond: tuple[Any, ...]
    default: Any
    rises: Mapping[str, float] = field(default_factory=dict)
    near: int = 1
    max_noise: float | Healing | None = None
    by_learnt: bool = False

    def excess(self, noise: float, cost: float) -> float:
        """Noise over squared movement, as a share of what is allowed at a degradation of ``cost``."""
        if isinstance(self.max_noise, Healing):
            return self.max_noise.excess(noise, cost)
        return 0.0 if self.max_noise is None else noise / self.max_noise


@runtime_checkable
class FitsSpace(Protocol):
    """A method that knows points of its space to be alike for some tensors."""

    def fitted(self, space: Space, state: Mapping[str, Tensor], hints: Hints) -> Space:
        """The part of its space in which points differ.

        Args:
            space: what `Method.space` returned, or a narrower one.
            state: the live tensors that it takes, by name.
            hints: of the save.
        """
        ...


def spares_gradients(method: object) -> bool:
    """Whether a method needs no gradients recorded where an optimizer averages them itself.

    It says so by an attribute ``spares_gradients = True``; a method that has none gets them.
    """
    return bool(getattr(method, "spares_gradients", False))


@runtime_checkable
class Method(Protocol):
    """A way of turning tensors into fewer bytes.

    Attributes:
        name: as given in ``method=``.
        owns: roles whose floating tensors it takes, of "weight" and "moment"; the rest goes elsewhere.
    """

    name: str
    owns: frozenset[str]

    def options(self) -> dict[str, Any]:
        """Its options as JSON-ready data, recorded in every file."""
        ...

    def config(self, data: Mapping[str, Any]) -> Any:
        """Rebuilds a config from the mapping that its ``as_dict`` wrote."""
        ...

    def space(self, *, gradients: bool) -> Space:
        """The search space; without gradients it leaves out what needs them."""
        ...

    def accepts(self, tensor: Tensor) -> bool:
        """Whether this method wants the tensor; those it refuses are stored exactly."""
        ...

    def draft(self, state: Mapping[str, Tensor], ref: Reference | None, config: Any, hints: Hints) -> Draft:
        """Drafts a checkpoint of ``state`` against ``ref`` (None: a key checkpoint).

        ``ref`` was returned by this method for tensors of the same names, shapes and dtypes.
        """
        ...

    def decode(
        self, streams: StreamSource, ref: Reference | None, names: Iterable[str] | None = None
    ) -> Reference:
        """Turns streams back into a reference; ``names`` restricts it to some tensors.

        Raises:
            CorruptFileError: the streams are not what this method writes.
        """
        ...
