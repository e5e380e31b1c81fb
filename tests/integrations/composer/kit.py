"""A classifier of handwritten digits trained by Composer, and what the tests compare of it."""

import os
import random
import subprocess
import sys
from pathlib import Path

import numpy as np
import torch
from composer import Trainer
from composer.models import ComposerClassifier
from composer.utils import dist, reproducibility
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from dynaquant_composer import DynaQuantCallback
from dynaquant_composer.folder import SHOWN
from dynaquant_composer.pointer import folder_of
from tests.integrations.killing import bits
from tests.programs import Program

ROOT = Path(__file__).parents[3]

#: Nothing is rounded: a resumed run is the uninterrupted one.
EXACT = {"exact": "*", "moments": "exact"}

#: Trainers that are still open.
RUNS = []

#: Batches of an epoch.
EPOCH = 6


class Net(nn.Module):
    """Its forward pass draws random numbers (dropout) and changes buffers (batch norm)."""

    def __init__(self, width):
        super().__init__()
        self.num_classes = 10
        self.body = nn.Sequential(nn.Linear(64, width), nn.BatchNorm1d(width), nn.ReLU(), nn.Dropout(0.2))
        self.head = nn.Linear(width, 10)

    def forward(self, x):
        return self.head(self.body(x))


def digits():
    """(training, validation) sets of 64-pixel images."""
    found = load_digits()
    images, labels = torch.tensor(found.data / 16, dtype=torch.float32), torch.tensor(found.target)
    size = 64 * EPOCH
    return TensorDataset(images[:size], labels[:size]), TensorDataset(images[1400:1700], labels[1400:1700])


def ours(folder, save_interval="3ba", **options):
    return DynaQuantCallback(folder, save_interval, **options)


def trainer(*callbacks, duration="12ba", width=48, seed=0, **options):
    """A quiet Trainer on the CPU."""
    reproducibility.seed_all(seed)
    model = ComposerClassifier(Net(width))
    training, validation = digits()
    given = {
        "model": model,
        "train_dataloader": DataLoader(training, 64, sampler=dist.get_sampler(training, shuffle=True)),
        "eval_dataloader": DataLoader(validation, 100, sampler=dist.get_sampler(validation)),
        "optimizers": torch.optim.AdamW(model.parameters(), lr=1e-2),
        "max_duration": duration,
        "eval_interval": 0,
        "seed": seed,
        "run_name": "digits",
        "device": "cpu",
        "progress_bar": False,
    }
    RUNS.append(Trainer(callbacks=list(callbacks), **given | options))
    return RUNS[-1]


def fit(*callbacks, **options):
    run = trainer(*callbacks, **options)
    run.fit()
    return run


def everything(run):
    """What a run is: weights, buffers, optimizer, schedulers, algorithms, and every random stream."""
    state = run.state
    trained = isinstance(state.model, nn.parallel.DistributedDataParallel)
    return bits(
        {
            "model": (state.model.module if trained else state.model).state_dict(),
            "optimizers": [optimizer.state_dict() for optimizer in state.optimizers],
            "schedulers": [scheduler.state_dict() for scheduler in state.schedulers],
            "batch": int(state.timestamp.batch),
            "rng": [random.getstate(), np.random.get_state()[1], torch.get_rng_state()],  # noqa: NPY002
        }
    )


def names(folder):
    return sorted(path.name for path in Path(folder).iterdir())


def never_shown(file):
    """As a process leaves a checkpoint that it committed and did not live to show."""
    file.unlink()
    (folder_of(file) / SHOWN).unlink()


def python(*words, **more):
    """Starts a Python process that finds the packages of this tree."""
    options = {"cwd": ROOT, "text": True, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | more
    return subprocess.Popen([sys.executable, *map(str, words)], env=environment(), **options)


def program(*words, env=None):
    """The same, where a process need not import Composer itself."""
    return Program(words, env=environment() | (env or {}), needs=("composer",))


def environment():
    paths = os.pathsep.join([str(ROOT), str(ROOT / "integrations"), os.environ.get("PYTHONPATH", "")])
    return os.environ | {"PYTHONPATH": paths, "PYTHONWARNINGS": "ignore"}
