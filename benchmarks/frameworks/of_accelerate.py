"""A job in a loop of Accelerate: ``save_state()``, ``total_limit``, ``load_state()``."""

from __future__ import annotations

import os
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import ProjectConfiguration, set_seed
from job import CLIP, RATE, Job, Material, loss_of, losses, result, timed
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

os.environ.setdefault("ACCELERATE_LOG_LEVEL", "ERROR")


class Progress:
    """Where the loop stands; saved by Accelerate."""

    def __init__(self) -> None:
        self.done = 0

    def state_dict(self) -> dict[str, int]:
        """To be saved."""
        return {"done": self.done}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """What was saved."""
        self.done = state["done"]


def train(job: Job) -> dict[str, Any]:
    """Trains to the end, or to death."""
    set_seed(job.seed)
    material, progress = Material(job), Progress()
    project = ProjectConfiguration(job.folder, automatic_checkpoint_naming=True, total_limit=job.keep or None)
    accelerator = Accelerator(cpu=True, project_config=project)
    model: nn.Module = material.model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 - step / job.steps)
    loader = DataLoader(TensorDataset(material.inputs, material.targets), job.batch)
    model, optimizer, scheduler, loader = accelerator.prepare(model, optimizer, scheduler, loader)
    accelerator.register_for_checkpointing(progress)
    ours = None
    if job.ours:
        from dynaquant_accelerate import install

        def evaluate(model: nn.Module) -> list[float]:
            return losses(model, material.search)

        ours = install(
            accelerator, every=job.every, evaluate=evaluate if job.search else None, **job.options()
        )
    if job.resume:
        accelerator.load_state()
        project.iteration = progress.done // job.every  # Accelerate itself would begin to count at 0 again
    began, held = progress.done, list[float]()
    save = timed(accelerator.save_state, held)
    for inputs, targets in accelerator.skip_first_batches(loader, began):
        accelerator.backward(loss_of(model(inputs), targets))
        accelerator.clip_grad_norm_(model.parameters(), CLIP)
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
        progress.done += 1
        if progress.done % job.every == 0:
            save()
        job.may_die(progress.done)
    accelerator.end_training()
    if ours is not None:
        ours.close()
    return result(job, began, accelerator.unwrap_model(model), model, held)
