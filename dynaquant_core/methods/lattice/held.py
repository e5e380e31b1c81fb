"""What a reader holds after a checkpoint of the method ``lattice``: about one byte a weight."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from dynaquant_core.methods.base import Reference
from dynaquant_core.methods.lattice.cells import Cells
from dynaquant_core.methods.lattice.rows import holds_rows
from dynaquant_core.methods.words import Plain
from dynaquant_core.threads import map_threads, thread_count

__all__ = ["Held", "Rows"]

#: bool[rows].
Rows = NDArray[np.bool_]


class Held:
    """A whole checkpoint on its lattices; a `Reference` (methods.base).

    Args:
        tensors: what is held of each, by name.
        epoch: of the newest lattice.
        scale: of the newest lattice; 0 where a checkpoint beyond the lattice was the last.
        restored: it was read from a file, so a run may have begun on these very values: the next checkpoint
            must draw its offsets anew.
        began: epochs of the lattices that tensors lay on, in every bit, when this life of the run began (or a
            key found them so), by name: as long as one is still it stays there, and no longer.
        unmoved: bool[rows] of tensors in words, by name: which rows are what this life of the run began on.
        wanted: names that `items` yields; None: all.
    """

    def __init__(
        self,
        tensors: Mapping[str, Cells | Plain],
        epoch: int,
        scale: float,
        *,
        restored: bool,
        began: Mapping[str, int] | None = None,
        unmoved: Mapping[str, Rows] | None = None,
        wanted: frozenset[str] | None = None,
    ) -> None:
        self.tensors = dict(tensors)
        self.epoch = epoch
        self.scale = scale
        self.restored = restored
        self._began, self._unmoved = dict(began or {}), dict(unmoved or {})
        self._names = [name for name in self.tensors if wanted is None or name in wanted]

    def cells(self) -> Iterator[tuple[str, Cells]]:
        """Yields (name, cells) of what is on a lattice."""
        yield from ((name, own) for name, own in self.tensors.items() if isinstance(own, Cells))

    @property
    def began(self) -> Mapping[str, int]:
        """Epochs of the lattices that this life of the run began on, by name."""
        if not self.restored:
            return self._began
        return {name: own.epoch for name, own in self.cells()}

    def is_start(self, name: str) -> bool:
        """Whether a life of the run began on the very values that are held of a tensor.

        Then it may be held there only while it is still: it would snap back from anything less than half a
        step, however many checkpoints later it moves.
        """
        own = self.tensors.get(name)
        return self.restored or (isinstance(own, Cells) and self._began.get(name) == own.epoch)

    def rows_begun(self, name: str) -> Rows | None:
        """Which rows of a tensor may be what this life of the run began on; None: none of them."""
        own = self.tensors.get(name)
        if own is None or len(own.spec.shape) < 2:
            return None
        if self.is_start(name):
            return np.ones(own.spec.shape[0], np.bool_)
        if isinstance(own, Cells):
            return own.rows.held() if own.rows is not None and holds_rows(own.rows) else None
        return self._unmoved.get(name)

    def rejoin(self, newest: Reference) -> None:
        """Goes on as what the run that wrote it held; see `methods.base.Rejoins`."""
        if isinstance(newest, Held):
            self.restored, self._began = newest.restored, dict(newest.began)
            known = {name: newest.rows_begun(name) for name in self.tensors}
            self._unmoved = {name: rows for name, rows in known.items() if rows is not None}

    def items(self) -> Iterator[tuple[str, Tensor]]:
        """Yields (name, tensor), on the CPU; a few are decoded at a time, one a thread."""
        count = thread_count()
        for start in range(0, len(self._names), count):
            batch = self._names[start : start + count]
            yield from zip(batch, map_threads(self._tensor, batch), strict=True)

    def state(self) -> dict[str, Tensor]:
        """All tensors, decoded."""
        return dict(zip(self._names, map_threads(self._tensor, self._names), strict=True))

    def _tensor(self, name: str) -> Tensor:
        return self.tensors[name].tensor()
