"""One rank, in one of the lives of a job that its launcher starts again; started by `test_restarted_ranks`.

``python -m tests.plugins.restarted_ranks PORT LIFE RANK FOLDER``: the launcher's store listens at PORT, as
that of ``torchrun`` does, and outlives every life.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path

import torch
from torch import distributed, nn
from torch.distributed import distributed_c10d

from dynaquant_core.errors import DynaQuantError
from dynaquant_core.plugins import PluginOptions, PluginRun
from tests.gloo import leave
from tests.plugins.kit import slow_disk

#: Rank 1 ends only then in its second life: rank 0 waits for it, ready to save.
READY = 2.0


def _join(port: int, life: int, rank: int, folder: Path) -> None:
    """Two ranks meet; the store that others ask for is the launcher's.

    Gloo has one of its own each time: it may find addresses of the life before in the launcher's, and then
    fails until the launcher has tried often enough.
    """
    meeting = f"file://{folder / f'meeting-{life}'}"
    distributed.init_process_group("gloo", init_method=meeting, rank=rank, world_size=2)
    launcher = distributed_c10d.PrefixStore("default_pg", distributed.TCPStore("127.0.0.1", port))
    group = distributed.group.WORLD
    distributed_c10d._world.pg_map[group] = ("gloo", launcher)


def main(port: int, life: int, rank: int, folder: Path) -> None:
    """First life: rank 0 is killed in the midst of a save.  Second: rank 1 before one.  Third: none is."""
    _join(port, life, rank, folder)
    torch.manual_seed(0)
    model = nn.Linear(64, 64)
    run = PluginRun(PluginOptions(exact="*"), framework="none")
    run.watch(model, torch.optim.Adam(model.parameters()))
    checkpoint, found = folder / "checkpoint", {}

    def save(step: int) -> None:
        tree = {"model": model.state_dict()}
        run.choose(step, tree)
        if rank == 0:
            run.save(checkpoint, step, tree)

    if life == 0:
        save(1)
        run.wait()
        distributed.barrier()
        slow_disk(60.0)
        save(2)
        distributed.barrier()
        os.kill(os.getpid(), signal.SIGKILL)
    started = time.monotonic()
    run.load(checkpoint)
    found["seconds"] = time.monotonic() - started
    distributed.barrier()
    (folder / f"rank{rank}-{life}.json").write_text(json.dumps(found), "utf-8")
    if (life, rank) == (1, 1):
        time.sleep(READY)
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        save(2)
        run.wait()
    except DynaQuantError as error:
        found["heard"] = str(error)
    (folder / f"rank{rank}-{life}.json").write_text(json.dumps(found), "utf-8")
    distributed.barrier()
    leave()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4]))
