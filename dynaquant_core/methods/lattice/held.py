"""What a reader holds after a checkpoint of the method ``lattice``: about one byte a weight."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from torch import Tensor

from dynaquant_core.methods.base import Reference
from dynaquant_core.methods.lattice.cells import Cells
from dynaquant_core.methods.words import Plain
from dynaquant_core.threads import map_threads, thread_count

__all__ = ["Held"]


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
        wanted: frozenset[str] | None = None,
    ) -> None:
        self.tensors = dict(tensors)
        self.epoch = epoch
        self.scale = scale
        self.restored = restored
        self._began = dict(began or {})
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

    def rejoin(self, newest: Reference) -> None:
        """Goes on as what the run that wrote it held; see `methods.base.Rejoins`."""
        if isinstance(newest, Held):
            self.restored, self._began = newest.restored, dict(newest.began)

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
