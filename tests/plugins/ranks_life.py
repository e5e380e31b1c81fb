"""One rank of a job that trains together: ``python -m tests.plugins.ranks_life FOLDER RANK RANKS``.

All ranks see the same batches, as if gradients were averaged.  Prints one JSON object: what became of each
choice, what the writer committed, and how several ranks leave.
"""

import json
import logging
import sys
from pathlib import Path

import torch
from torch import distributed

from dynaquant_core.errors import DynaQuantError
from dynaquant_core.plugins import PluginOptions, PluginRun
from tests.gloo import leave as leave_group
from tests.plugins.ranks_leave import leave
from tests.training.models import build, evaluate_net, net_loss, one_step, seed_everything

EVERY = 5
NEWCOMER_AT = 20  # from here on rank 1 is a run that knows nothing of the saves before
FAILS_AT = 30  # what rank 2 wants to save here is no state


def new_run(model, optimizer, infos):
    run = PluginRun(PluginOptions(threshold=0.02), framework="none", report=infos.append)
    run.watch(model, optimizer, evaluate=evaluate_net)
    return run


def endless():
    loop = []
    loop.append(loop)
    return loop


def main(folder, rank, ranks):
    if ranks > 1:
        distributed.init_process_group(
            "gloo", init_method=f"file://{folder}/store", rank=rank, world_size=ranks
        )
    seed_everything()
    model, optimizer = build()
    infos, errors = [], []
    run = new_run(model, optimizer, infos)
    for step in range(1, FAILS_AT + EVERY + 1):
        run.look_ahead(EVERY - (step - 1) % EVERY)
        seed_everything(step)
        one_step(model, optimizer, net_loss)
        if step == NEWCOMER_AT and rank == 1:
            run.close()
            run = new_run(model, optimizer, infos)
        if step % EVERY == 0:
            tree = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "rank": rank}
            if step == FAILS_AT and rank == 2:
                tree["rank"] = endless()
            try:
                run.choose(step, tree)
            except DynaQuantError as error:
                errors.append([step, type(error).__name__, str(error)])
                continue
            if rank == 0:
                run.save(folder / f"{ranks}-ranks" / str(step), step, tree)
    run.close()
    kinds = [[info.step, info.kind, info.config.as_dict(), info.evaluations, info.met] for info in infos]
    left = leave(folder, rank, model) if ranks > 1 else {}
    sys.stdout.write(json.dumps({"saved": kinds, "errors": errors} | left))
    if ranks > 1:
        distributed.barrier()
        leave_group()


if __name__ == "__main__":
    torch.set_num_threads(1)
    logging.disable(logging.CRITICAL)
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
