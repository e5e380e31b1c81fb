"""Starts the ranks of a real job on this machine and reads what each of them saw."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch import distributed

from tests.programs import Program

#: Groups that were left; see `leave`.
_left: list[distributed.ProcessGroup] = []

#: Act -> what each rank that lived recorded of it, in the order of ranks.
Found = dict[str, list[Any]]


@contextmanager
def a_group_of_one(folder: Path) -> Iterator[None]:
    """Inside the context this process is a job by itself."""
    meeting = f"file://{folder}/rendezvous"
    distributed.init_process_group("gloo", init_method=meeting, rank=0, world_size=1)
    try:
        yield
    finally:
        leave()


def leave() -> None:
    """Leaves the job; the group's threads live as long as the process.

    What ends a gloo group waits for its threads while it holds the interpreter's lock, and a thread that has
    just finished a sum wants that lock to let go of its tensors: now and then neither goes on (torch 2.7).
    """
    assert distributed.group.WORLD is not None
    _left.append(distributed.group.WORLD)
    distributed.destroy_process_group()


def environments(ranks: int) -> list[dict[str, str]]:
    """What a launcher puts into each rank's environment."""
    shared = {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": _free_port(),
        "WORLD_SIZE": ranks,
        "LOCAL_WORLD_SIZE": ranks,
    }
    shared |= {"NODE_RANK": 0, "OMP_NUM_THREADS": 1}
    each = [shared | {"RANK": rank, "LOCAL_RANK": rank} for rank in range(ranks)]
    return [{name: str(value) for name, value in one.items()} for one in each]


def play(module: str, folder: Path, ranks: int, *acts: str, store: str = "file") -> Found:
    """Runs ``python -m MODULE STORE RANK RANKS OUT ACT...`` for every rank; what they recorded.

    Forked processes end without taking the interpreter down.  One plain DDP job in twenty does not survive
    that ("terminate called without an active exception"): a model outlives its process group there, whose
    threads want a lock that is gone.
    """
    store = f"tcp://127.0.0.1:{_free_port()}" if store == "tcp" else f"file://{folder / 'store'}"
    outs = [folder / f"rank{rank}.json" for rank in range(ranks)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "DYNAQUANT_THREADS": "1"}
    commands = [
        ["-m", module, store, str(rank), str(ranks), str(out), *acts] for rank, out in enumerate(outs)
    ]
    started = [Program(command, env=environment) for command in commands]
    try:
        errors = [process.communicate(timeout=240)[1] for process in started]
    finally:
        for process in started:
            process.kill()
    codes = [process.returncode for process in started]
    assert set(codes) <= {0, -9}, "\n".join(errors)
    records = [json.loads(out.read_text("utf-8")) for out, code in zip(outs, codes, strict=True) if code == 0]
    return {act: [record[act] for record in records] for act in acts}


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])
