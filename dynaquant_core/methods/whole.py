"""What methods share that write every tensor whole, bit for bit, each time: what people do today."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, ClassVar

from numpy.typing import NDArray
from torch import Tensor

from dynaquant_core.methods.base import Space, Stream, StreamSource
from dynaquant_core.methods.fixed import NoConfig
from dynaquant_core.methods.streams import decode_stream
from dynaquant_core.methods.tensorwise import TensorMethod
from dynaquant_core.state import TensorSpec, copied, empty_words, words_of

__all__ = ["AsItIs", "Whole"]

#: A tensor's bits.
Words = NDArray[Any]


@dataclass(frozen=True, slots=True)
class AsItIs(NoConfig):
    """The only point there is.

    Example:
        >>> AsItIs.from_dict(AsItIs().as_dict())
        AsItIs()
    """

    @property
    def exact(self) -> bool:
        """No: the method itself keeps every bit, the skeleton's way out is not needed."""
        return False


class Whole(TensorMethod[AsItIs, Words, Words]):
    """Every tensor's words, under one codec; a subclass says which.

    Every checkpoint stands alone.
    """

    point = AsItIs
    owns = frozenset({"weight", "moment"})
    builds_on_base: ClassVar[bool] = False

    @abstractmethod
    def encoded(self, words: Words) -> tuple[int, bytes]:
        """(codec id, payload) of a tensor's words."""

    def space(self, *, gradients: bool) -> Space:  # noqa: ARG002 - there is nothing to choose
        """One point."""
        point = AsItIs()
        return Space(build=AsItIs, axes={}, variants={}, refine={}, beyond=(point,), default=point)

    def accepts(self, tensor: Tensor) -> bool:  # noqa: ARG002
        """Every tensor."""
        return True

    def code(
        self,
        name: str,  # noqa: ARG002
        tensor: Tensor,
        base: Words | None,  # noqa: ARG002
        config: AsItIs,  # noqa: ARG002
        plan: Any,  # noqa: ARG002
    ) -> Words:
        """A copy of its words."""
        return words_of(tensor).copy()

    def hold(self, coded: Words) -> Words:
        """The same words."""
        return coded

    def value(self, held: Words, spec: TensorSpec) -> Tensor:
        """The tensor."""
        return copied(held, spec)

    def write(self, name: str, coded: Words) -> Iterable[Stream]:
        """One stream a tensor."""
        yield Stream(name, "words", *self.encoded(coded))

    def read(self, source: StreamSource, name: str, spec: TensorSpec, base: Words | None) -> Words:  # noqa: ARG002
        """Reads one tensor; see `TensorMethod.read`."""
        words = empty_words(spec)
        decode_stream(source, name, "words", words)
        return words
