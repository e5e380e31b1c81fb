"""The all-reduce of compressed gradients, bucket by bucket, while backward still runs.

The model is not wrapped in DistributedDataParallel.  DDP's reducer copies every dense gradient into dense
buckets before a communication hook sees it: the hook could shrink what is sent, but the buckets would hold a
second dense gradient, which is the memory that SAMO is there to save, and the hooks that free the dense
gradient would race with the reducer's.  So the compressed vectors have buckets of their own.  They are
launched
in the same order on every rank, as DDP does.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping

import torch
import torch.distributed as dist
import xxhash
from torch import Tensor, nn
from torch.autograd import Variable

from dynaquant_core.errors import ConfigError, GradientError
from dynaquant_core.memory.samo.slots import Bucket, Slot

__all__ = ["Group", "Reducer", "broadcast", "differing", "refusing", "resolve"]

#: A process group; "world": all ranks where torch.distributed is at work; None: this process alone.
Group = dist.ProcessGroup | str | None


def resolve(group: Group) -> dist.ProcessGroup | None:
    """The process group to average over; None where this process is alone.

    Raises:
        ConfigError: neither a group, nor "world", nor None.
    """
    if isinstance(group, str) and group != "world":
        raise ConfigError(f"samo: group must be a process group, 'world' or None, got {group!r}.")
    if group is None or not dist.is_available() or not dist.is_initialized():
        return None
    known = isinstance(group, str | dist.ProcessGroup)
    if not known:
        raise ConfigError(f"samo: group must be a process group, 'world' or None, got {group!r}.")
    found = dist.group.WORLD if isinstance(group, str) else group
    return found if dist.get_world_size(found) > 1 else None


def broadcast(model: nn.Module, group: dist.ProcessGroup) -> None:
    """Every rank begins with the weights and buffers of the group's first, as under DDP."""
    source = dist.get_global_rank(group, 0)
    with torch.no_grad():
        for tensor in (*model.parameters(), *model.buffers()):
            whole = tensor.detach().contiguous()
            dist.broadcast(whole, source, group)
            tensor.copy_(whole)


def refusing(refused: bool, group: dist.ProcessGroup) -> int | None:
    """The highest of the group's ranks that say no; the same on all of them, None where nobody does.

    Args:
        refused: what this rank says.
        group: the ranks; the backend says where, since a rank that refuses may have no model.
    """
    device = torch.device("cuda" if dist.get_backend(group) == "nccl" else "cpu")
    highest = torch.tensor(dist.get_rank(group) if refused else -1, device=device)
    dist.all_reduce(highest, dist.ReduceOp.MAX, group)
    found = int(highest)
    return None if found < 0 else found


def differing(said: Mapping[str, bytes], group: dist.ProcessGroup, device: torch.device) -> list[str]:
    """The names under which the ranks said different things; the same list on all of them.

    Args:
        said: the same names in the same order on every rank.
        group: the ranks.
        device: one that the group communicates on.
    """
    digests = [xxhash.xxh3_64_intdigest(one) >> 2 for one in said.values()]
    highest = torch.tensor([digests, [-one for one in digests]], device=device)
    dist.all_reduce(highest, dist.ReduceOp.MAX, group)
    most, least = highest.tolist()
    return [name for name, high, low in zip(said, most, least, strict=True) if high != -low]


class Reducer:
    """Averages buckets over the ranks of a group.

    A parameter without a gradient on any rank keeps none; one without a gradient on some ranks counts as
    zeros
    there.  Each bucket carries a flag a parameter for that.

    Args:
        buckets: the same on all ranks, in the order in which they are launched.
        group: at least two ranks.
        load: puts what a parameter has accumulated into its bucket; False: it has nothing.
        deliver: called with each slot when its average is in the bucket.
        agree: called before anything of a backward pass is sent; may raise: the pass was never begun then.
    """

    def __init__(
        self,
        buckets: list[Bucket],
        group: dist.ProcessGroup,
        *,
        load: Callable[[Slot], bool],
        deliver: Callable[[Slot], None],
        agree: Callable[[], None],
    ) -> None:
        self._buckets, self._group = buckets, group
        self._load, self._deliver, self._agree = load, deliver, agree
        self._ranks = dist.get_world_size(group)
        self._home = {slot.name: bucket for bucket in buckets for slot in bucket.slots}
        self._launched: list[dist.Work] = []
        self._lock = threading.Lock()
        self._waiting = False

    def ready(self, slot: Slot) -> None:
        """A gradient is in its bucket; launches what is complete and asks to be called when backward ends."""
        with self._lock:
            if not self._waiting:
                self._agree()
                self._waiting = True
                Variable._execution_engine.queue_callback(self._finish)
            self._home[slot.name].ready.add(slot.name)
            self._launch()

    def require_done(self) -> None:
        """Raises GradientError where a backward pass broke off before its gradients were averaged."""
        if self._waiting:
            raise GradientError(
                "samo: a backward pass broke off before its gradients were averaged over the ranks; "
                "nothing was "
                "changed; end the job and resume from a checkpoint."
            )

    def _launch(self) -> None:
        """Sends complete buckets, in order: collectives are matched between ranks by their order."""
        while len(self._launched) < len(self._buckets):
            bucket = self._buckets[len(self._launched)]
            if len(bucket.ready) < len(bucket.slots):
                return
            bucket.flags.fill_(1)
            self._send(bucket)

    def _send(self, bucket: Bucket) -> None:
        bucket.buffer.div_(self._ranks)
        work = dist.all_reduce(bucket.buffer, group=self._group, async_op=True)
        assert work is not None
        self._launched.append(work)

    def _finish(self) -> None:
        for bucket in self._buckets[len(self._launched) :]:
            has = [float(self._has(slot, bucket)) for slot in bucket.slots]
            bucket.flags.copy_(torch.tensor(has, device="cpu"))
            self._send(bucket)
        for work in self._launched:
            work.wait()
        for bucket in self._buckets:
            for slot in self._used(bucket):
                self._deliver(slot)
            bucket.ready.clear()
        self._launched.clear()
        self._waiting = False

    def _has(self, slot: Slot, bucket: Bucket) -> bool:
        """Whether a slot takes part; one that does not is zero in the bucket."""
        if slot.name in bucket.ready or self._load(slot):
            return True
        assert slot.gradient is not None
        slot.gradient.zero_()
        return False

    def _used(self, bucket: Bucket) -> Iterable[Slot]:
        """Slots with a gradient on any rank; the flags are only read where this rank is not sure."""
        if len(bucket.ready) == len(bucket.slots):
            return bucket.slots
        flags: list[float] = _listed(bucket.flags)
        return [slot for slot, flag in zip(bucket.slots, flags, strict=True) if flag > 0]


def _listed(flags: Tensor) -> list[float]:
    return [float(flag) for flag in flags.tolist()]
