"""What is held of moments after a checkpoint: all codes by a reader, 4-bit ones and levels by a writer."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from dynaquant_core.errors import MissingBaseError
from dynaquant_core.methods.moments.forms import Coded, decoded
from dynaquant_core.state import TensorSpec

__all__ = ["CONTEXTUAL", "MomentsReference", "Packed", "contexts", "packed"]

#: Forms whose codes help to code those of the next checkpoint.
CONTEXTUAL: Final = frozenset("Ssq")


@dataclass(frozen=True, slots=True)
class Packed:
    """Codes below 16, two a byte."""

    letter: str
    size: int
    pairs: NDArray[np.uint8]

    def codes(self) -> NDArray[np.uint8]:
        """The codes, a byte each."""
        both = np.empty((self.pairs.size, 2), np.uint8)
        both[:, 0], both[:, 1] = self.pairs & 15, self.pairs >> 4
        return both.reshape(-1)[: self.size]


def packed(coded: Coded) -> Packed:
    """The codes of a moment in 4-bit blocks, or its levels, two a byte.

    Example:
        >>> three = Coded("s", np.array([1, 15, 7], np.uint8), np.empty(0), np.empty(0))
        >>> packed(three).codes().tolist()
        [1, 15, 7]
    """
    padded = np.append(coded.codes, np.uint8(0)) if coded.codes.size % 2 else coded.codes
    return Packed(coded.letter, coded.codes.size, padded[::2] | padded[1::2] << np.uint8(4))


@dataclass(slots=True)
class MomentsReference:
    """What a checkpoint's moments are for those who wrote or read it; a `Reference` (methods.base).

    Args:
        specs: shape and dtype of the tensors that `items` yields.
        coded: by name; empty on the writer's side, a reader's may have more than ``specs``.
        digests: of the tensors as they were before coding, by name; the writer's side only.
        packed: codes of the forms `CONTEXTUAL`, by name; the writer's side only.
    """

    specs: dict[str, TensorSpec]
    coded: dict[str, Coded]
    digests: dict[str, bytes] = field(default_factory=dict)
    packed: dict[str, Packed] = field(default_factory=dict)

    def items(self) -> Iterator[tuple[str, Tensor]]:
        """Yields (name, tensor), decoded one at a time.

        Raises:
            MissingBaseError: this is a writer's reference, which does not hold all codes.
        """
        for name, spec in self.specs.items():
            if name not in self.coded:
                raise MissingBaseError(f"The codes of {name!r} are not held; load its checkpoint first.")
            yield name, decoded(self.coded[name], spec)

    def state(self) -> dict[str, Tensor]:
        """All tensors, decoded."""
        return dict(self.items())

    def compact(self, name: str) -> Packed | None:
        """One tensor's codes, two a byte, if they are of a form in `CONTEXTUAL`."""
        held = self.coded.get(name)
        if held is not None and held.letter in CONTEXTUAL:
            return packed(held)
        return self.packed.get(name)

    def context(self, name: str, letter: str) -> NDArray[Any] | None:
        """One tensor's codes if they are held in this form and it is one of `CONTEXTUAL`."""
        held = self.coded.get(name)
        if letter not in CONTEXTUAL:
            return None
        if held is not None:
            return held.codes if held.letter == letter else None
        pairs = self.packed.get(name)
        return pairs.codes() if pairs is not None and pairs.letter == letter else None


def contexts(
    base: MomentsReference | None, names: Iterable[str], letters: Mapping[str, str]
) -> NDArray[Any] | None:
    """The base's codes of some tensors end to end; None unless each is held there in its form."""
    if base is None:
        return None
    found = [base.context(name, letters[name]) for name in names]
    known = [codes for codes in found if codes is not None]
    if len(known) < len(found):
        return None
    return known[0] if len(known) == 1 else np.concatenate(known)
