"""One rank that restores under SAMO.

``python -m tests.memory.samo_restored_ranks STORE RANK RANKS OUT ACT...``; ACT says what the ranks restore:
``first`` (rank 0 alone does), ``steps`` (others than each other), ``masks`` (rank 0 alone, and other masks
than the ranks drew), ``moments`` (one checkpoint, but rank 1 without its moments), ``shared`` (one
checkpoint, as docs/samo.md says) or ``nothing``.  After "later " rank 0 alone restores when all have trained
together: ``first``, ``masks``, or ``weights`` (into the model alone).
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
from torch import distributed, nn

import dynaquant_core as dq
from dynaquant_core.errors import StateMismatchError
from dynaquant_core.memory import samo
from tests.gloo import leave


class Pair:
    """A small model under SAMO and its optimizer."""

    def __init__(self, seed):
        torch.manual_seed(seed)
        self.model = nn.Sequential(nn.Linear(16, 64), nn.Tanh(), nn.Linear(64, 4))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.01)
        self.handle = samo.wrap(self.model, self.optimizer, sparsity=0.8, dtype=torch.float32)

    def train(self, first, last, checkpoints=None):
        for number in range(first, last):
            self.optimizer.zero_grad()
            draw = torch.Generator().manual_seed(10 * number + distributed.get_rank())
            x, y = torch.randn(32, 16, generator=draw), torch.randn(32, 4, generator=draw)
            (self.model(x) - y).square().mean().backward()
            self.optimizer.step()
            if checkpoints is not None:
                checkpoints.step()

    def apart(self):
        """How far the ranks' weights are apart, at most."""
        whole = torch.cat([one.detach().flatten().float() for one in self.handle.parameters()])
        everybodys = [torch.empty_like(whole) for _ in range(distributed.get_world_size())]
        distributed.all_gather(everybodys, whole)
        return max(float((one - everybodys[0]).abs().max()) for one in everybodys)


def restored(act, folder, rank):
    """A pair that has restored what its rank restores in this act."""
    act, later = act.removeprefix("later "), act.startswith("later ")
    pair = Pair(seed=7 if act == "masks" else 0)
    if later:
        pair.train(4, 8)
    if act == "weights":
        if rank == 0:
            pair.model.load_state_dict(dq.CheckpointStore(folder / "run").load(8)["model"])
    elif act == "moments":
        tree = dq.CheckpointStore(folder / "run").load(8)
        if rank == 1:
            tree["optimizer"]["state"] = {}
        pair.model.load_state_dict(tree["model"])
        pair.optimizer.load_state_dict(tree["optimizer"])
    elif act in ("shared", "steps") or (act in ("first", "masks") and rank == 0):
        step = 4 if act == "steps" and rank == 1 else 8
        dq.Checkpointer(folder / "run", pair.model, pair.optimizer).restore(step)
    return pair


def play(act, folder, rank):
    """The error that training ends in, and how far weights are apart once all have restored the same."""
    pair = restored(act, folder, rank)
    said = None
    try:
        pair.train(8, 12)
    except StateMismatchError as error:
        said = str(error)
        dq.Checkpointer(folder / "run", pair.model, pair.optimizer).restore(8)
        pair.train(8, 12)
    return {"said": said, "at last": pair.apart()}


def main():
    """Trains and saves, then plays the acts."""
    store, rank, ranks, out, *acts = sys.argv[1:]
    torch.set_num_threads(1)
    distributed.init_process_group("gloo", init_method=store, rank=int(rank), world_size=int(ranks))
    folder = Path(out).parent
    pair = Pair(seed=0)
    if distributed.get_rank() == 0:
        with dq.Checkpointer(folder / "run", pair.model, pair.optimizer, every=4) as checkpoints:
            pair.train(0, 8, checkpoints)
    else:
        pair.train(0, 8)
    distributed.barrier()
    found = {act: play(act, folder, int(rank)) for act in acts}
    Path(out).write_text(json.dumps(found), encoding="utf-8")
    distributed.barrier()
    leave()


if __name__ == "__main__":
    main()
