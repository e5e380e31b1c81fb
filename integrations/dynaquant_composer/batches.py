"""The batches a search measures on: those that the trainer would evaluate on, read without a trace."""

from __future__ import annotations

from collections.abc import Iterator, Sized
from contextlib import AbstractContextManager, contextmanager
from copy import copy
from itertools import islice
from typing import Any

from composer.core import Evaluator
from composer.trainer.trainer import _get_distributed_sampler
from composer.utils import dist
from torch import nn
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler

from dynaquant_core.errors import ConfigError
from dynaquant_core.plugins.generators import kept

__all__ = ["batches_of", "untouched_generators"]


@contextmanager
def batches_of(evaluator: Evaluator, epoch: int) -> Iterator[Iterator[Any]]:
    """Gives an iterator over the evaluator's batches, the same ones at every call.

    They are those of an evaluation by the trainer itself, in one process in the same order; under data
    parallelism every rank reads those of all.  The loader's own workers and iterator are left alone, and its
    sampler is as before when the context ends.

    Args:
        evaluator: of the trainer.
        epoch: told to a `DistributedSampler`; the trainer tells it the number of batches trained on.

    Raises:
        ConfigError: no rank can read the data of the others.
    """
    loader, limit, many = evaluator.dataloader.dataloader, _limit(evaluator), dist.get_world_size() > 1
    if not isinstance(loader, DataLoader):
        _require_shared(evaluator, good=not many)
        yield islice(loader, limit)
        return
    sampler = _get_distributed_sampler(loader)
    with _put_back(sampler):
        if sampler is not None:
            sampler.set_epoch(epoch)
        if many:
            _require_shared(evaluator, good=sampler is not None and sampler is loader.sampler)
            limit = None if limit is None else limit * sampler.num_replicas
            _read_all(sampler)
        yield islice(_apart(loader), limit)


def untouched_generators(evaluators: list[Evaluator], model: nn.Module) -> AbstractContextManager[None]:
    """A context at whose end all generators are where they were that loaders, transforms or the model hold.

    The global ones the core puts back.
    """
    return kept([*(evaluator.dataloader for evaluator in evaluators), *model.modules()])


def _limit(evaluator: Evaluator) -> int | None:
    """How many batches the trainer would read; None: all, however many they are."""
    loader, subset = evaluator.dataloader.dataloader, evaluator.subset_num_batches
    try:
        whole = len(loader) if isinstance(loader, Sized) else None
    except (TypeError, NotImplementedError):
        whole = None
    limits = [whole, None if subset is None or subset < 0 else int(subset)]
    return min((limit for limit in limits if limit is not None), default=None)


def _apart(loader: DataLoader[Any]) -> DataLoader[Any]:
    """A loader of the same class and data that leaves the iterator of ``loader`` and its workers alone.

    Its own workers live for one pass: in those that stay, collators would draw on from one measurement to
    the next.
    """
    fresh = copy(loader)
    vars(fresh).update(_iterator=None, persistent_workers=False)  # a plain assignment is refused
    return fresh


@contextmanager
def _put_back(sampler: DistributedSampler[Any] | None) -> Iterator[None]:
    """Gives the sampler its attributes back: its epoch, and what it reads of the data."""
    own = {} if sampler is None else vars(sampler)
    before = dict(own)
    try:
        yield
    finally:
        own.clear()
        own.update(before)


def _read_all(sampler: DistributedSampler[Any]) -> None:
    """Lets the sampler draw what it draws for all ranks, without what it repeats to even them out.

    The ranks' n-th batches together are the next ones of the whole permutation, so that a subset is the same.
    """
    size = min(sampler.total_size, len(sampler.dataset))  # type: ignore[arg-type]
    sampler.num_replicas, sampler.rank = 1, 0
    sampler.num_samples = sampler.total_size = size


def _require_shared(evaluator: Evaluator, *, good: bool) -> None:
    if not good:
        raise ConfigError(
            f"evaluator {evaluator.label!r} reads a stream, or by a batch sampler, and each rank sees a part "
            f"of its own: give evaluate=, which must see the same data on every rank."
        )
