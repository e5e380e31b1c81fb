"""A training process for tests that kill it: ``python -m tests.plugins.life FOLDER STEPS``.

It saves at every second step into a folder of its own, keeps a second name for the last one, and removes all
but the newest three, as frameworks do.  Prints where it began, and at the end a digest of the whole state.
"""

import hashlib
import sys
from pathlib import Path

import torch

from dynaquant_core.plugins import PluginOptions, PluginRun, describe, find_checkpoints
from tests.plugins.kit import EXACT, Gauge
from tests.training.models import Net, bits, evaluate_net, net_loss, one_step, seed_everything

EVERY = 2
KEPT = 3


def state_of(step, model, optimizer):
    return {
        "step": step,
        "model": dict(model.state_dict()),
        "optimizer": optimizer.state_dict(),
        "rng": torch.get_rng_state(),
        "callbacks": {"gauge": Gauge(step), f"step-{step}.ckpt": torch.tensor(step)},
    }


def resume(run, folder, model, optimizer):
    """Loads the newest checkpoint; returns its step."""
    found = find_checkpoints(folder)
    if not found:
        return 0
    tree = run.load(max(found, key=lambda path: describe(path).step), weights_only=False)
    model.load_state_dict(tree["model"])
    optimizer.load_state_dict(tree["optimizer"])
    torch.set_rng_state(tree["rng"])
    return tree["step"]


def main(folder, steps):
    seed_everything()
    model = Net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    run = PluginRun(PluginOptions(max_chain=3, **EXACT), framework="none")
    start = resume(run, folder, model, optimizer)
    sys.stdout.write(f"start {start}\n")
    sys.stdout.flush()
    run.watch(model, [optimizer], evaluate=evaluate_net)
    for step in range(start + 1, steps + 1):
        run.look_ahead(EVERY - (step - 1) % EVERY)
        torch.manual_seed(step)  # the other streams of `net_loss` are not part of this state
        seed_everything(step)
        one_step(model, optimizer, net_loss)
        if step % EVERY == 0:
            run.save(folder / f"step-{step}.ckpt", step, state_of(step, model, optimizer))
            run.copy(folder / f"step-{step}.ckpt", folder / "last.ckpt")
            run.remove(folder / f"step-{step - KEPT * EVERY}.ckpt")
    run.close()
    tree = state_of(steps, model, optimizer)
    del tree["callbacks"]
    sys.stdout.write(f"digest {hashlib.sha256(repr(bits(tree)).encode()).hexdigest()}\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
