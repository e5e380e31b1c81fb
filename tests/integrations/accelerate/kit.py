"""A classifier of handwritten digits in a loop of Accelerate, and what the tests compare of it."""

import os
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from accelerate import Accelerator
from accelerate.utils import ProjectConfiguration, set_seed
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

from dynaquant_accelerate import install
from tests.integrations import scaler
from tests.integrations.killing import bits
from tests.programs import Program

ROOT = Path(__file__).parents[3]

#: Nothing is rounded: a resumed run is the uninterrupted one.
EXACT = {"exact": "*", "moments": "exact"}

#: Of ranks on a machine that may have a GPU.
ON_CPU = {"ACCELERATE_USE_CPU": "true"}

#: Batches of an epoch; a run resumes at the start of one, where Accelerate itself is bit-identical.
EPOCH = 4


class Net(nn.Module):
    """Its forward pass draws random numbers (dropout) and changes buffers (batch norm)."""

    def __init__(self, width=48):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(64, width), nn.BatchNorm1d(width), nn.ReLU(), nn.Dropout(0.2))
        self.head = nn.Linear(width, 10)

    def forward(self, x):
        return self.head(self.body(x))


def digits():
    """(training, validation) sets of 64-pixel images."""
    found = load_digits()
    images, labels = torch.tensor(found.data / 16, dtype=torch.float32), torch.tensor(found.target)
    size = 64 * EPOCH
    return TensorDataset(images[:size], labels[:size]), (images[1400:1700], labels[1400:1700])


def evaluate(model):
    images, labels = digits()[1]
    losses = functional.cross_entropy(model(images), labels, reduction="none")
    return losses.view(10, 30).mean(1)


@dataclass
class Bench:
    """One training: everything that a script would hold."""

    accelerator: Any
    model: Any
    optimizer: Any
    scheduler: Any
    loader: Any
    ours: Any = None
    done: int = 0


def build(folder, *, ours=True, width=48, seed=0, total_limit=None, make=Net, options=None, **accelerator):
    """A prepared training; ``ours``: with DynaQuant installed; "fp16": with a scaler, as on a GPU."""
    set_seed(seed)
    project = ProjectConfiguration(str(folder), automatic_checkpoint_naming=True, total_limit=total_limit)
    runner = Accelerator(**{"cpu": True, "project_config": project} | accelerator)
    if runner.mixed_precision == "fp16":
        scaler.put_into(runner)
    model = make(width)
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1e-2)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 5, 0.9)
    loader = DataLoader(digits()[0], 64)
    bench = Bench(runner, *runner.prepare(model, optimizer, scheduler, loader))
    if ours:
        bench.ours = install(runner, **({"every": EPOCH} | (options or {})))
    return bench


def resume(bench, folder=None):
    """As a script would: what was saved, or nothing."""
    if folder is not None or bench.ours.newest() is not None:
        bench.accelerator.load_state(folder)
        bench.done = bench.ours.step
    return bench


def train(bench, until, *, save_every=None, after_step=lambda: None):
    while bench.done < until:
        for images, labels in bench.loader:
            loss = functional.cross_entropy(bench.model(images), labels)
            bench.accelerator.backward(loss)
            bench.accelerator.clip_grad_norm_(bench.model.parameters(), 1.0)
            bench.optimizer.step()
            bench.scheduler.step()
            bench.optimizer.zero_grad()
            bench.done += 1
            after_step()
            if save_every and bench.done % save_every == 0:
                bench.accelerator.save_state()
    return bench


def everything(bench):
    """What a run is: weights, buffers, optimizer, scheduler, and every random stream."""
    return bits(
        {
            "model": bench.accelerator.unwrap_model(bench.model).state_dict(),
            "optimizer": bench.optimizer.state_dict(),
            "scheduler": bench.scheduler.state_dict(),
            "rng": [random.getstate(), np.random.get_state()[1], torch.get_rng_state()],  # noqa: NPY002
            "done": bench.done,
        }
    )


def names(folder):
    return sorted(path.name for path in Path(folder).iterdir())


def python(*words, env=None):
    """Starts a Python process that finds the packages of this tree."""
    paths = os.pathsep.join([str(ROOT), str(ROOT / "integrations"), os.environ.get("PYTHONPATH", "")])
    given = os.environ | {"PYTHONPATH": paths} | (env or {})
    return Program(words, env=given, needs=("accelerate",))
