"""The collectives of one bucket, as futures that DDP waits for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, cast

import torch
from torch import Tensor, distributed
from torch.futures import Future
from torch.nn import Parameter

__all__ = ["Bucket", "all_gather", "dense", "views_of"]


class Bucket(Protocol):
    """What is used of `torch.distributed.GradBucket`."""

    def index(self) -> int:
        """Its place among the buckets, which come in this order."""
        ...

    def is_last(self) -> bool:
        """Whether the backward pass ends with it."""
        ...

    def buffer(self) -> Tensor:
        """Its gradients, flat [n]."""
        ...

    def gradients(self) -> list[Tensor]:
        """Contiguous views into `buffer`, in the parameters' shapes."""
        ...

    def parameters(self) -> list[Parameter]:
        """Its parameters."""
        ...


def views_of(bucket: Bucket) -> list[Tensor]:
    """A bucket's gradients as views into its buffer, in the parameters' own memory order.

    The bucket's own ``gradients()`` take every tensor for contiguous; where one is not (channels_last,
    say), DDP lays its gradient out as the parameter lies, if that is dense.
    """
    buffer = bucket.buffer()
    return [
        buffer.as_strided(item.shape, _dense_strides(item), view.storage_offset())
        for item, view in zip(bucket.parameters(), bucket.gradients(), strict=True)
    ]


def _dense_strides(parameter: Tensor) -> tuple[int, ...]:
    """The strides of a dense tensor, those of a contiguous one for any other."""
    like = torch.empty_like(parameter, device="meta")
    return like.stride() if like.stride() == parameter.stride() else like.contiguous().stride()


def all_gather(
    packed: Tensor, group: distributed.ProcessGroup, decode: Callable[[Tensor], Tensor]
) -> Future[Tensor]:
    """Gathers the codes of all ranks and decodes them as they have arrived.

    Args:
        packed: uint8[n] of this rank, of the same length on all.
        group: the ranks.
        decode: takes uint8[ranks, n], in the order of ranks.  It is let go of before the future is done:
            a thread of the group calls it, and where that thread lets go of what is the last to hold the
            group, the group waits for the thread from inside of it, and the process dies ("Resource
            deadlock avoided") at the end of a job that had gone well.
    """
    ranks = group.size()
    if ranks == 1:
        done: Future[Tensor] = Future()
        done.set_result(decode(packed[None]))
        return done
    gathered = torch.empty(ranks * packed.numel(), dtype=torch.uint8, device=packed.device)
    # torch 2.13 has renamed it; older ones know the old name only.
    gather = getattr(distributed, "all_gather_single", None) or distributed.all_gather_into_tensor
    work = gather(gathered, packed, group=group, async_op=True)
    held = [decode]  # what ``finish`` closes over outlives the future

    def finish(future: Future[object]) -> Tensor:
        try:
            future.value()  # raises where a rank is gone
        except BaseException:
            held.clear()
            raise
        return held.pop()(gathered.view(ranks, -1))

    return cast("Future[Tensor]", work.get_future().then(finish))


def dense(buffer: Tensor, group: distributed.ProcessGroup) -> Future[Tensor]:
    """The plain all-reduce (a sum) of a bucket, in place."""
    work = distributed.all_reduce(buffer, group=group, async_op=True)
    return cast("Future[Tensor]", work.get_future().then(lambda future: future.value()[0]))
