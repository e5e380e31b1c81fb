"""Random generators of the user's own, with a state that a checkpoint holds: parts of `extra`."""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from random import Random
from typing import Any, Final, TypeAlias

import numpy as np
import torch

__all__ = ["Stream", "stateful"]

Generator: TypeAlias = torch.Generator | np.random.Generator | np.random.RandomState | Random

GENERATORS: Final = (torch.Generator, np.random.Generator, np.random.RandomState, Random)


def stateful(item: Any) -> Any:
    """A generator as a `Stream`; anything else as it is, and so is a generator with a state of its own.

    Example:
        >>> stateful(3), type(stateful(Random(0))).__name__
        (3, 'Stream')
    """
    own = hasattr(item, "state_dict")
    return Stream(item) if isinstance(item, GENERATORS) and not own else item


class Stream:
    """Where a generator stands, as ``state_dict`` gives it and ``load_state_dict`` takes it.

    Args:
        generator: torch's, either of NumPy's, or Python's.

    Example:
        >>> drawn = Random(0)
        >>> stream = Stream(drawn)
        >>> before = stream.state_dict()
        >>> number = drawn.random()
        >>> stream.load_state_dict(before)
        >>> drawn.random() == number
        True
    """

    def __init__(self, generator: Generator) -> None:
        self._generator = generator

    def state_dict(self) -> dict[str, Any]:
        """The generator's state under the name of its library."""
        generator = self._generator
        if isinstance(generator, torch.Generator):
            return {"torch": generator.get_state()}
        if isinstance(generator, np.random.Generator):
            return {"numpy": deepcopy(generator.bit_generator.state)}
        if isinstance(generator, np.random.RandomState):
            return {"numpy": generator.get_state(legacy=False)}
        version, words, gauss = generator.getstate()
        return {"python": {"version": version, "words": np.array(words, dtype=np.uint32), "gauss": gauss}}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Puts the generator where it stood; raises as the generator does."""
        generator = self._generator
        if isinstance(generator, torch.Generator):
            generator.set_state(state["torch"].cpu())
        elif isinstance(generator, np.random.Generator):
            generator.bit_generator.state = state["numpy"]
        elif isinstance(generator, np.random.RandomState):
            generator.set_state(state["numpy"])
        else:
            stored = state["python"]
            words = tuple(int(word) for word in stored["words"])
            generator.setstate((stored["version"], words, stored["gauss"]))

    def check_state_dict(self, state: Mapping[str, Any]) -> None:
        """Raises where the generator would refuse the state; it stays where it stands."""
        before = self.state_dict()
        try:
            self.load_state_dict(state)
        finally:
            self.load_state_dict(before)
