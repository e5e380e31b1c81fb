"""Two-bit gradients over a parameter server (MXNet's distributed mode): packed pushes, dense pulls.

Workers push the codes of their gradients to server ranks, each of which holds a shard; servers decode to full
size and add; workers pull the sum, dense.  The optimizer stays with the workers.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, final

import torch
from torch import Tensor, distributed, nn

from dynaquant_core.comm.attach import trained_parameters
from dynaquant_core.comm.two_bit.alike import LOOKS
from dynaquant_core.comm.two_bit.codes import lost_to_rounding, require_floating
from dynaquant_core.comm.two_bit.layout import Layout
from dynaquant_core.comm.two_bit.residuals import Residuals
from dynaquant_core.comm.two_bit.saved import put_back, require_fit, state_of
from dynaquant_core.comm.two_bit.settings import Reduce, Threshold, TwoBitSettings
from dynaquant_core.comm.two_bit.wire import (
    ALIKE,
    DENSE,
    PACKED,
    STOP,
    Plan,
    agree,
    ask,
    kind_of,
    roles,
    talking_to,
    verdict,
    wait,
)
from dynaquant_core.config import require
from dynaquant_core.errors import RankLostError
from dynaquant_core.state import digest_of

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["Worker", "serve"]


def serve(servers: Sequence[int], device: torch.device | str = "cpu") -> int:
    """Runs a server rank until every worker has closed; returns the number of rounds it served.

    In each round it waits for a push of every worker that is not closed, in the order of ranks, and answers
    them all; the mean is over those.

    Args:
        servers: the ranks of the default group that serve, the same list on every rank, this one in it.
        device: where shards are held and added, one that the process group can send from.

    Raises:
        ConfigError: the roles are wrong.
        StateMismatchError: the workers do not agree on what to compress.
        RankLostError: a worker is gone.
    """
    who = roles(servers)
    rank, place = distributed.get_rank(), torch.device(device)
    require(rank in who.servers, f"two_bit: rank {rank} is not among the servers {list(servers)}.")
    plan = agree(who, None, place)
    shard = plan.shards(len(who.servers))[who.servers.index(rank)]
    pushing, rounds = list(who.workers), 0
    while True:
        pushed = _pushes(pushing, shard, place)
        pushing = list(pushed)
        if not pushing:
            return rounds
        total = _sum(list(pushed.values()), shard, plan.settings)
        with talking_to(*pushing):
            wait([distributed.isend(total, worker) for worker in pushing if shard.count])
        rounds += 1


def _pushes(workers: list[int], shard: Layout, device: torch.device) -> dict[int, Tensor]:
    """What each worker pushes: uint8 codes or float32 values; those that stop are left out.

    Those that ask whether they are alike are answered when all have been heard, and push after that.
    """
    pushed, told = {}, {}
    for worker in workers:
        kind = kind_of(STOP, device)
        with talking_to(worker):
            distributed.recv(kind, worker)
        if int(kind) == STOP:
            continue
        if int(kind) == ALIKE:
            told[worker] = torch.empty(2, dtype=torch.int64, device=device)
            with talking_to(worker):
                distributed.recv(told[worker], worker)
            continue
        size, dtype = (shard.bytes, torch.uint8) if int(kind) == PACKED else (shard.count, torch.float32)
        pushed[worker] = torch.empty(size, dtype=dtype, device=device)
        if size:
            with talking_to(worker):
                distributed.recv(pushed[worker], worker)
    if told:
        found = kind_of(verdict(told.values()), device)
        for worker in told:
            with talking_to(worker):
                distributed.send(found, worker)
        pushed |= _pushes(list(told), shard, device)
    return {worker: pushed[worker] for worker in workers if worker in pushed}


def _sum(pushed: list[Tensor], shard: Layout, settings: TwoBitSettings) -> Tensor:
    """The pushes added in float32 in the order of ranks; packed and dense ones may meet after a restore."""
    divisor = settings.divisor(len(pushed))
    if all(push.dtype == torch.uint8 for push in pushed):
        return shard.decode_sum(torch.stack(pushed), divisor)
    dense = [push if push.dtype == torch.float32 else shard.decode_sum(push[None], 1.0) for push in pushed]
    return torch.stack(dense).sum(0) / divisor


@final
class Worker:
    """A worker rank: after each backward pass, `exchange` replaces the gradients by those of all workers.

    Args:
        model: the same on every worker, on one device that the process group can send from.
        servers: the ranks of the default group that serve, the same list on every rank.
        threshold: t, or name pattern -> t; see `TwoBitSettings`, also for the others.  The first worker's are
            broadcast; every worker must give the same.
        negative_threshold: size of what is sent below zero; None: ``threshold``.
        reduce: "mean" over the workers, or "sum".
        warmup: first exchanges that push dense gradients.

    Raises:
        ConfigError: a setting or the roles are wrong, or nothing is trained.
        UnsupportedStateError: a parameter is of a dtype that has no two-bit codes.
        StateMismatchError: on every rank, where workers do not agree on what to compress.

    Source: MXNet pull request 8662.
    """

    def __init__(
        self,
        model: nn.Module,
        servers: Sequence[int],
        threshold: Threshold = 0.5,
        negative_threshold: Threshold | None = None,
        reduce: Reduce = "mean",
        *,
        warmup: int = 0,
    ) -> None:
        self.settings = TwoBitSettings(
            threshold=threshold, negative_threshold=negative_threshold, reduce=reduce, warmup=warmup
        )
        self._who = roles(servers)
        rank = distributed.get_rank()
        require(rank in self._who.workers, f"two_bit: rank {rank} is a server; call two_bit.serve on it.")
        self._parameters = trained_parameters(model)
        require(bool(self._parameters), "two_bit: the model has no parameter that is trained.")
        for name, parameter in self._parameters.items():
            require_floating(parameter, f"parameter {name!r}")
        limits = self.settings.limits(self._parameters)
        self._device = next(iter(self._parameters.values())).device
        sizes = {name: (tuple(item.shape), limits[name]) for name, item in self._parameters.items()}
        plan = agree(self._who, Plan(self.settings, sizes), self._device)
        self._shards = plan.shards(len(self._who.servers))
        self._residuals = Residuals(self._parameters)
        count = sum(shard.count for shard in self._shards)
        self._flat = torch.zeros(count, dtype=torch.float32, device=self._device)
        self._closed = False
        self._looks = LOOKS
        #: Completed exchanges, and bytes of gradients pushed in them.
        self.step, self.bytes_pushed = 0, 0

    def exchange(self) -> None:
        """Pushes this worker's gradients and pulls the reduced ones; every worker calls it.

        A parameter without a gradient counts as one of zeros; afterwards all have gradients.

        Raises:
            ConfigError: the worker is closed.
            UnsupportedStateError: a gradient is sparse; nothing was sent.
            StateMismatchError: on every worker, at the first two exchanges, and at those after a load:
                workers are at different steps, or hold different weights; gradients stay their own.
            RankLostError: a server is gone, perhaps after a worker; gradients stay this worker's own.
        """
        require(not self._closed, "two_bit: the worker is closed; make a new one, and new servers, to go on.")
        for name, parameter in self._parameters.items():
            if parameter.grad is not None:
                require_floating(parameter.grad, f"the gradient of {name!r}")
        if self._looks:  # nobody broadcasts weights here, as DDP would
            self._looks -= 1
            ask(self._who.servers[0], self.step, digest_of(self._parameters), self._device)
        views = self._views()
        for view, parameter in zip(views, self._parameters.values(), strict=True):
            view.zero_() if parameter.grad is None else view.copy_(parameter.grad)
        works: list[distributed.Work | None] = []
        pulled, at = torch.empty_like(self._flat), 0
        held = self._residuals.flat(tuple(self._parameters), views, self._flat)
        dense = self.step < self.settings.warmup
        for server, shard in zip(self._who.servers, self._shards, strict=True):
            part = slice(at, at + shard.count)
            push = self._flat[part].clone() if dense else shard.encode(held[part], self._flat[part])
            with talking_to(server):
                works.append(distributed.isend(kind_of(DENSE if dense else PACKED, self._device), server))
                if shard.count:
                    works += [distributed.isend(push, server), distributed.irecv(pulled[part], server)]
            self.bytes_pushed += push.nbytes
            at = part.stop
        with talking_to(*self._who.servers):
            wait(works)
        self._flat.copy_(pulled)
        share = self.settings.divisor(len(self._who.workers)) / len(self._who.workers)
        for (name, parameter), view in zip(self._parameters.items(), views, strict=True):
            parameter.grad = view.to(parameter.dtype, copy=True)
            lost = None if dense else lost_to_rounding(view, parameter.grad, share)
            if lost is not None:
                self._residuals.by_name[name].add_(lost)
        self.step += 1

    def close(self) -> None:
        """Tells the servers that this worker pushes no more; they return when all workers have.

        Raises:
            RankLostError: a server is gone.
        """
        if self._closed:
            return
        self._closed = True
        for server in self._who.servers:
            with talking_to(server):
                distributed.send(kind_of(STOP, self._device), server)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None or not issubclass(kind, RankLostError):  # there is nobody to tell
            self.close()

    def state_dict(self) -> dict[str, Any]:
        """The residual of this worker: a tree that a checkpoint can hold, its tensors the live ones."""
        return state_of(*self._place(), self.step, self.settings.reduce, self._residuals)

    def check_state_dict(self, state: Any) -> None:
        """Raises what `load_state_dict` would raise, and touches nothing."""
        require_fit(state, *self._place(), self._residuals)

    def load_state_dict(self, state: Any) -> None:
        """Takes `state_dict` back, on the worker that gave it.

        Raises:
            StateMismatchError: it is another worker's, of another number of workers or another model; nothing
                was touched.
        """
        self.step = put_back(state, *self._place(), self._residuals)
        self._looks = LOOKS

    def _place(self) -> tuple[int, int]:
        """Which of how many workers this is."""
        return self._who.workers.index(distributed.get_rank()), len(self._who.workers)

    def _views(self) -> list[Tensor]:
        """The flat gradient as the parameters' shapes."""
        sizes = [parameter.numel() for parameter in self._parameters.values()]
        parts: Sequence[Tensor] = torch.split(self._flat, sizes)
        return [part.view(item.shape) for part, item in zip(parts, self._parameters.values(), strict=True)]
