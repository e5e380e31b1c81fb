"""Which items a training step takes: all of them in a new order each epoch."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dynaquant_core.experiments.data.dataset import drawn

__all__ = ["Epochs"]


class Epochs:
    """Places of a step's items; an epoch leaves out what does not fill a batch.

    Args:
        purpose: of the order, so that two data sets of one size differ in theirs.
        count: items there are.
        batch: items a step, at most ``count``.

    Example:
        >>> epochs = Epochs("example", count=5, batch=2)
        >>> both = np.concatenate([epochs.places(0, step) for step in (0, 1)])
        >>> len(set(both.tolist())), epochs.places(0, 2).tolist() == both[:2].tolist()
        (4, False)
    """

    def __init__(self, purpose: str, count: int, batch: int) -> None:
        self._purpose, self._count, self._batch = purpose, count, batch
        self._known: tuple[tuple[int, int], NDArray[np.int64]] | None = None

    def places(self, seed: int, step: int) -> NDArray[np.int64]:
        """int64[batch]: the same for the same two numbers, in any process."""
        epoch, index = divmod(step, self._count // self._batch)
        if self._known is None or self._known[0] != (seed, epoch):
            order = drawn(self._purpose, seed, epoch).permutation(self._count)
            self._known = ((seed, epoch), order)
        return self._known[1][index * self._batch : (index + 1) * self._batch]
