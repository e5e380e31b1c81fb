"""What workers and servers of the parameter server say to each other, over point-to-point messages.

One worker broadcasts the parameters of the compression to all ranks, as JSON.  After that every message of a
worker to a server is one number, its kind, followed by the shard in that form; the answer is the dense shard.
Before its first pushes a worker tells the first server its step and a digest of its weights (the kind ALIKE);
the answer is one number, which of the two are not those of all who told.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, final

import torch
from torch import Tensor, distributed

from dynaquant_core.comm.two_bit.layout import Layout
from dynaquant_core.comm.two_bit.settings import Limits, TwoBitSettings
from dynaquant_core.config import require
from dynaquant_core.errors import RankLostError, StateMismatchError

__all__ = [
    "ALIKE",
    "DENSE",
    "PACKED",
    "STOP",
    "Plan",
    "Roles",
    "agree",
    "ask",
    "kind_of",
    "roles",
    "talking_to",
    "verdict",
    "wait",
]

#: Kinds of message.
STOP, PACKED, DENSE, ALIKE = 0, 1, 2, 3


@final
@dataclass(frozen=True, slots=True)
class Roles:
    """Which ranks are what: ``servers`` in the order of their shards, ``workers`` ascending."""

    servers: tuple[int, ...]
    workers: tuple[int, ...]


@final
@dataclass(frozen=True, slots=True)
class Plan:
    """The parameters of the compression, as the first worker broadcasts them.

    Args:
        settings: as the workers were given them.
        sizes: parameter -> (shape, thresholds), in the order in which they are laid end to end.
    """

    settings: TwoBitSettings
    sizes: Mapping[str, tuple[tuple[int, ...], Limits]]

    def shards(self, servers: int) -> list[Layout]:
        """What each server holds: consecutive pieces of all parameters, of about equal bytes."""
        tensors = [(torch.Size(shape).numel(), limits) for shape, limits in self.sizes.values()]
        return Layout.of(tensors).cut(servers)

    def as_bytes(self) -> bytes:
        """JSON; `from_bytes` takes it back."""
        sizes = [[name, list(shape), list(limits)] for name, (shape, limits) in self.sizes.items()]
        return json.dumps({"settings": self.settings.as_dict(), "sizes": sizes}).encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> Plan:
        """Takes `as_bytes` back."""
        said: dict[str, Any] = json.loads(data)
        sizes = {name: (tuple(shape), (above, below)) for name, shape, (above, below) in said["sizes"]}
        return cls(TwoBitSettings.from_dict(said["settings"]), sizes)


def roles(servers: Sequence[int]) -> Roles:
    """The roles of all ranks of the default process group, given which are servers.

    Raises:
        ConfigError: torch.distributed is not set up, or the servers are not distinct ranks that leave a
            worker.
    """
    ready = distributed.is_available() and distributed.is_initialized()
    require(ready, "two_bit: a parameter server needs torch.distributed; call init_process_group first.")
    listed = isinstance(servers, Sequence) and all(isinstance(rank, int) for rank in servers)
    require(listed, f"two_bit: servers must be a list of ranks, got {servers!r}.")
    ranks = distributed.get_world_size()
    good = len(set(servers)) == len(servers) > 0 and all(rank in range(ranks) for rank in servers)
    require(
        good and len(servers) < ranks,
        f"two_bit: servers must be distinct ranks of 0 to {ranks - 1} and leave a worker, got "
        f"{list(servers)}.",
    )
    return Roles(tuple(servers), tuple(rank for rank in range(ranks) if rank not in servers))


def agree(who: Roles, own: Plan | None, device: torch.device) -> Plan:
    """The first worker's plan, broadcast to every rank; collective.

    Args:
        who: the roles.
        own: what this worker compresses with; None on a server.
        device: of the tensors that travel.

    Raises:
        StateMismatchError: on every rank, where a worker means something else.
    """
    source = who.workers[0]
    said = own.as_bytes() if own is not None and distributed.get_rank() == source else b""
    length = torch.tensor([len(said)], device=device)
    distributed.broadcast(length, source)
    data = torch.zeros(int(length), dtype=torch.uint8, device=device)
    if said:
        data.copy_(torch.frombuffer(bytearray(said), dtype=torch.uint8))
    distributed.broadcast(data, source)
    heard = bytes(data.tolist())
    differs = torch.tensor([int(own is not None and own.as_bytes() != heard)], device=device)
    distributed.all_reduce(differs)
    if int(differs):
        raise StateMismatchError(
            f"two_bit: {int(differs)} of {len(who.workers)} workers compress other tensors or with other "
            f"settings than rank {source}; give every worker the same model and the same settings."
        )
    return Plan.from_bytes(heard)


def verdict(told: Iterable[Tensor]) -> int:
    """What a server answers to workers: 0 where they are alike, else 1 of other steps, 2 of other weights.

    Args:
        told: int64[2] of each that told.
    """
    steps, weights = (set(each) for each in zip(*(one.tolist() for one in told), strict=True))
    return 1 if len(steps) > 1 else 2 if len(weights) > 1 else 0


def ask(server: int, step: int, digest: int, device: torch.device) -> None:
    """Has a server compare this worker with the others.

    Args:
        server: the rank that hears all workers.
        step: exchanges that this one has done.
        digest: of its weights.
        device: of the tensors that travel.

    Raises:
        StateMismatchError: on every worker that has asked, where they are not alike.
        RankLostError: the server is gone.
    """
    answer = kind_of(0, device)
    with talking_to(server):
        distributed.send(kind_of(ALIKE, device), server)
        distributed.send(torch.tensor([step, digest], device=device), server)
        distributed.recv(answer, server)
    if int(answer):
        what = ("", "have done other numbers of steps", "hold other weights")[int(answer)]
        raise StateMismatchError(
            f"two_bit: workers {what} (here step {step}), so their gradients do not belong together; restore "
            "all workers from checkpoints of one step, then call two_bit.from_first_rank(model, optimizer, "
            "group=...) on them before the first forward pass."
        )


def kind_of(kind: int, device: torch.device) -> Tensor:
    """A message's kind as it travels: int64[1]."""
    return torch.tensor([kind], device=device)


def wait(works: Iterable[distributed.Work | None]) -> None:
    """Waits for messages that are under way."""
    for work in works:
        if work is not None:
            work.wait()


@contextmanager
def talking_to(*ranks: int) -> Iterator[None]:
    """Around messages to and from these ranks: what torch says of a lost one, in our words.

    Raises:
        RankLostError: torch could not send or receive.
    """
    try:
        yield
    except RuntimeError as error:
        whom = f"rank {ranks[0]}" if len(ranks) == 1 else f"one of the ranks {', '.join(map(str, ranks))}"
        reason = str(error).partition("\n")[0]
        raise RankLostError(
            f"two_bit: {whom} is gone or no longer answers ({reason}); end the other ranks and resume all of "
            "them from their newest common checkpoint."
        ) from error
