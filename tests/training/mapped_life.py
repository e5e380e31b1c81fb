"""A life of a run whose frozen table lies in a file that is mapped for reading: FOLDER TABLE EVALUATES.

Says where it began, which tensors its newest checkpoint keeps, how many candidates were measured, and what
the table holds.
"""

import sys
import warnings

import numpy as np
import torch
from torch import nn

import dynaquant_core as dq


def mapped(path):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns of an array that is not writable
        return torch.from_numpy(np.load(path, mmap_mode="r"))


def main(folder, path, evaluates):
    torch.manual_seed(0)
    table = mapped(path)
    model = nn.Sequential(nn.Embedding.from_pretrained(table), nn.Linear(32, 32))
    model.register_buffer("table", mapped(path))
    teacher = nn.Embedding.from_pretrained(mapped(path))
    optimizer = torch.optim.Adam(model[1].parameters())
    words = torch.arange(64)

    def loss():
        return (model(words) - teacher(words)).square().mean()

    with dq.Checkpointer(
        folder,
        model,
        optimizer,
        extra={"teacher": teacher},
        every=2,
        evaluate=loss if evaluates == "True" else None,
    ) as checkpoints:
        start = checkpoints.restore()
        for _ in range(3):
            optimizer.zero_grad()
            loss().backward()
            optimizer.step()
            checkpoints.step()
        info = checkpoints.wait()
    stored = dq.CheckpointStore(folder).load()
    kept = torch.equal(stored["model"]["0.weight"], table) and torch.equal(
        stored["extra"]["teacher"]["weight"], table
    )
    learnt = torch.equal(stored["model"]["1.weight"], model[1].weight)
    same = torch.equal(model[0].weight, torch.from_numpy(np.load(path)))
    sys.stdout.write(f"{start} {kept} {learnt} {bool(info.evaluations)} {same}\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
