"""One rank whose loop counts by itself: ``python -m tests.integrations.accelerate.by_itself FOLDER ACT``.

It prints what came of the act as JSON.
"""

import json
import logging
import os
import sys
import time
from pathlib import Path

import torch
from accelerate import Accelerator
from accelerate.utils import ProjectConfiguration
from torch import nn
from torch.distributed.algorithms.join import Join

from dynaquant_accelerate import install
from dynaquant_core.errors import DynaQuantError

#: Rank 0 waits for three quarters of it.
SECONDS = "6"


class Lines(logging.Handler):
    """Keeps what is logged."""

    def __init__(self):
        super().__init__(logging.WARNING)
        self.lines = []

    def emit(self, record):
        self.lines.append(record.getMessage())

    def with_text(self, text):
        return sum(text in line for line in self.lines)


class Loop:
    """A model that learns to give back what it is given, on all ranks."""

    def __init__(self, folder, *, numbered=False, **options):
        self.folder, self.said = folder, Lines()
        logging.getLogger("dynaquant_core").addHandler(self.said)
        naming = ProjectConfiguration(str(folder), automatic_checkpoint_naming=numbered)
        self.accelerator = Accelerator(cpu=True, project_config=naming)
        self.rank = self.accelerator.process_index
        torch.manual_seed(0)
        self.inputs = torch.randn(64, 48)
        model = nn.Linear(48, 48)
        optimizer = torch.optim.AdamW(model.parameters(), 0.01)
        self.model, self.optimizer = self.accelerator.prepare(model, optimizer)
        self.ours = install(self.accelerator, **({"evaluate": self.loss} | options))

    def loss(self, model):
        return float((model(self.inputs) - self.inputs).square().mean())

    def train(self, steps):
        for _ in range(steps):
            loss = (self.model(self.inputs) - self.inputs).square().mean()
            self.accelerator.backward(loss)
            self.optimizer.step()
            self.optimizer.zero_grad()

    def save(self, name):
        self.accelerator.save_state(str(self.folder / name))

    def hears(self, name):
        try:
            self.save(name)
        except DynaQuantError as error:
            return f"{type(error).__name__}: {error}"
        return None


def main_only(folder):
    """The main process saves, as it may natively; at the end all do."""
    loop = Loop(folder)
    for number in (1, 2):
        loop.train(2)
        if loop.accelerator.is_main_process:
            loop.save(f"by-main-{number}")
    loop.train(2)
    loop.save("by-all")
    loop.train(1)
    loop.save("by-all-again")
    loop.accelerator.end_training()
    return [loop.ours.step, *map(loop.said.with_text, ("saves by itself", "every process must call it"))]


def late(folder):
    """Rank 1 comes to the second save when rank 0 waits no more."""
    loop = Loop(folder)
    for number in (1, 2, 3):
        loop.train(2)
        if number == 2:
            time.sleep(1.5 * float(SECONDS) * loop.rank)
        loop.save(f"late-{number}")
    loop.train(1)
    loop.accelerator.end_training()
    return [loop.ours.step, *map(loop.said.with_text, ("saves by itself", "came too late for step 4"))]


def uneven(folder):
    """Rank 0 has one batch more, whose step the others join."""
    loop = Loop(folder)
    for number in (1, 2):
        with Join([loop.model]):
            loop.train(6 - loop.rank)
        loop.save(f"uneven-{number}")
    before = loop.ours.step
    loop.ours = install(loop.accelerator, evaluate=loop.loss)
    loop.train(1)
    loop.save("uneven-3")
    loop.accelerator.end_training()
    return [before, loop.ours.step]


def apart(folder):
    """A job of rank 0's fails; then the ranks go on from other checkpoints, and at last from the same."""
    loop = Loop(folder, exact="*", moments="exact")
    for number in (1, 2):
        loop.train(2)
        loop.save(f"apart-{number}")
    loop.ours.wait()
    loop.accelerator.wait_for_everyone()
    heard = []
    if loop.rank == 0:
        loop.ours._run._line.put("a copy", lambda: (folder / "nowhere").read_bytes())
    heard.append(loop.hears("apart-3"))
    loop.accelerator.load_state(str(folder / f"apart-{1 + loop.rank}"))
    loop.train(1)
    heard.append(loop.hears("apart-3"))
    loop.accelerator.load_state(str(folder / "apart-2"))
    loop.train(1)
    loop.save("apart-4")
    loop.accelerator.end_training()
    return [*heard, loop.ours.step]


def look(folder):
    """The main process alone asks for the newest checkpoint; then all load it."""
    loop = Loop(folder, numbered=True, exact="*", moments="exact")
    loop.train(2)
    loop.accelerator.save_state()
    newest = loop.ours.newest() if loop.accelerator.is_main_process else None
    loop.train(1)
    loop.accelerator.load_state()
    loop.train(1)
    loop.accelerator.end_training()
    return [newest and Path(newest).name, loop.ours.step]


if __name__ == "__main__":
    os.environ["DYNAQUANT_DEADLINE"] = SECONDS
    torch.set_num_threads(1)
    found = globals()[sys.argv[2]](Path(sys.argv[1]))
    sys.stdout.write(json.dumps(found) + "\n")
