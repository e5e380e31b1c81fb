"""The batches a search measures on: the first of the Trainer's own validation data, read without a trace."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from copy import copy, deepcopy
from dataclasses import dataclass
from itertools import islice
from typing import Any

from lightning.pytorch import Trainer
from lightning.pytorch.utilities import CombinedLoader
from lightning.pytorch.utilities.seed import isolate_rng
from torch import Tensor
from torch.utils.data import DataLoader

from dynaquant_core.plugins.generators import kept

__all__ = ["Batch", "held_out"]

#: Batches taken of each validation loader.
FIRST = 16


@dataclass(frozen=True, slots=True)
class Batch:
    """One batch as a loader gave it.

    Args:
        data: whatever the loader yields; on the host.
        index: its number in its loader.
        loader: number of its loader, or None where a step is not told.
    """

    data: Any
    index: int
    loader: int | None

    def copied(self) -> Any:
        """The data anew: a step or a hook may scale them in place, or take a key out, and these are kept.

        What cannot be copied (an open file) is in the copy as it is.
        """
        return _copied(self.data, {})


def held_out(trainer: Trainer) -> list[Batch]:
    """The first batches of each validation loader, the same on every rank; [] where there are none.

    No random stream, no generator of a loader and no worker of one is touched, and a loader that is being
    iterated over, or that knows where it stands, goes on as it was.  Loaders are set up if the Trainer has
    not done so yet, which every rank must do at the same time.
    """
    if not trainer.enable_validation:
        return []
    loop = trainer.fit_loop.epoch_loop.val_loop
    with isolate_rng():
        if loop._combined_loader is None:
            loop.setup_data()
        combined: CombinedLoader | None = loop._combined_loader
        if combined is None:
            return []
        loaders = combined.flattened
        with kept(_drawing(loaders)), _places_kept(loaders), _ranks_alike(loaders):
            return list(_read(combined, loop._max_batches))


def _read(combined: CombinedLoader, limits: list[int | float]) -> Iterator[Batch]:
    fresh = CombinedLoader(combined.iterables, combined._mode)
    fresh.flattened = [_apart(loader) for loader in combined.flattened]
    fresh.limits = [min(limit, FIRST) for limit in limits]
    told = combined._mode == "sequential" and len(fresh.flattened) > 1
    for data, index, loader in islice(iter(fresh), FIRST * len(fresh.flattened)):
        yield Batch(data, index, loader if told else None)


def _apart(loader: Any) -> Any:
    """A loader of the same data that starts no worker and leaves those of ``loader`` alone."""
    if not isinstance(loader, DataLoader):
        return loader
    fresh = copy(loader)
    fresh._iterator = None
    fresh.num_workers, fresh.timeout, fresh.pin_memory = 0, 0, False
    return fresh


def _parts(loaders: Iterable[Any]) -> list[Any]:
    """The loaders, and what draws their indices."""
    found = []
    for loader in loaders:
        batch_sampler = getattr(loader, "batch_sampler", None)
        found += [
            loader,
            getattr(loader, "sampler", None),
            batch_sampler,
            getattr(batch_sampler, "sampler", None),
        ]
    return found


def _drawing(loaders: Iterable[Any]) -> list[Any]:
    """What may draw from a generator of its own while the loaders are read."""
    own = [getattr(loader, name, None) for loader in loaders for name in ("collate_fn", "dataset")]
    return [*_parts(loaders), *own]


def _copied(value: Any, made: dict[int, Any]) -> Any:
    """A deep copy; ``made``: copies by the identity of what they are copies of, so that one stays one."""
    if id(value) in made:
        return made[id(value)]
    fresh: Any
    if isinstance(value, Tensor):  # `deepcopy` would take along all the memory that a view looks into
        fresh = value.detach().clone().requires_grad_(value.requires_grad)
    elif type(value) is dict:
        fresh = {key: _copied(item, made) for key, item in value.items()}
    elif type(value) in (list, tuple):
        fresh = type(value)(_copied(item, made) for item in value)
    else:
        try:
            return deepcopy(value, dict(made))  # one that fails leaves nothing half made behind
        except Exception:  # noqa: BLE001 - an object of any class: whatever it raises
            return value
    made[id(value)] = fresh
    return fresh


@contextmanager
def _places_kept(loaders: Iterable[Any]) -> Iterator[None]:
    """Puts loaders of the user's own, which are read themselves, back to where they stood."""
    own = [loader for loader in loaders if not isinstance(loader, DataLoader)]
    states = [
        (loader, deepcopy(loader.state_dict()))
        for loader in own
        if hasattr(loader, "state_dict") and hasattr(loader, "load_state_dict")
    ]
    try:
        yield
    finally:
        for loader, state in states:
            loader.load_state_dict(state)


@contextmanager
def _ranks_alike(loaders: Iterable[Any]) -> Iterator[None]:
    """Lets every rank read what rank 0 reads: ranks that measure different data cannot agree."""
    split = {
        id(part): part for part in _parts(loaders) if hasattr(part, "num_replicas") and hasattr(part, "rank")
    }
    ranks = [(part, part.rank) for part in split.values()]
    try:
        for part, _ in ranks:
            part.rank = 0
        yield
    finally:
        for part, rank in ranks:
            part.rank = rank
