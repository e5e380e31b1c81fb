"""A job in Lightning: ModelCheckpoint after each of several epochs, ``fit(ckpt_path=...)``."""

from __future__ import annotations

import logging
import warnings
from pathlib import Path
from typing import Any

import torch
from job import CLIP, RATE, Job, Material, loss_of, result, timed
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset


class Characters(LightningModule):
    """The model; an epoch is what lies between two saves."""

    def __init__(self, job: Job, material: Material) -> None:
        super().__init__()
        self.job, self.material = job, material
        self.net = material.model()

    def training_step(self, batch: list[Tensor]) -> Tensor:
        """The loss."""
        return loss_of(self.net(batch[0]), batch[1])

    def validation_step(self, batch: list[Tensor]) -> None:
        """Logs the loss."""
        self.log("val_loss", loss_of(self.net(batch[0]), batch[1]))

    def configure_optimizers(self) -> Any:
        """AdamW, its rate falling to nothing."""
        optimizer = torch.optim.AdamW(self.parameters(), lr=RATE)
        falls = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 - step / self.job.steps)
        return [optimizer], [{"scheduler": falls, "interval": "step"}]

    def train_dataloader(self) -> DataLoader[Any]:
        """The batches of this epoch."""
        size = self.job.every * self.job.batch
        part = slice(self.current_epoch * size, (self.current_epoch + 1) * size)
        return DataLoader(
            TensorDataset(self.material.inputs[part], self.material.targets[part]), self.job.batch
        )

    def val_dataloader(self) -> DataLoader[Any]:
        """What DynaQuant measures on."""
        inputs, targets = (torch.cat(part) for part in zip(*self.material.search, strict=True))
        return DataLoader(TensorDataset(inputs, targets), 32)


class Watch(Callback):
    """Notes where training begins, and ends the process where it is to die."""

    def __init__(self, job: Job) -> None:
        self.job, self.began = job, 0

    def on_train_start(self, trainer: Trainer, *_: Any) -> None:
        """The first step, or the one that was restored."""
        self.began = trainer.global_step

    def on_train_batch_end(self, trainer: Trainer, *_: Any) -> None:
        """After a step."""
        self.job.may_die(trainer.global_step)


def train(job: Job) -> dict[str, Any]:
    """Trains to the end, or to death."""
    warnings.simplefilter("ignore")
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    torch.manual_seed(job.seed)
    module, watch = Characters(job, Material(job)), Watch(job)
    keep = ModelCheckpoint(
        job.folder,
        filename="{step}",
        monitor="step",
        mode="max",
        save_top_k=job.keep or -1,
        every_n_epochs=1,
        save_on_train_epoch_end=True,
    )
    callbacks: list[Callback] = [keep, watch]
    if job.ours:
        from dynaquant_lightning import DynaQuantCallback

        callbacks.append(DynaQuantCallback(**job.options()))
    trainer = Trainer(
        max_epochs=job.steps // job.every,
        reload_dataloaders_every_n_epochs=1,
        check_val_every_n_epoch=job.steps,  # never: only the search validates
        limit_val_batches=None if job.search else 0,
        num_sanity_val_steps=0,
        gradient_clip_val=CLIP,
        callbacks=callbacks,
        accelerator="cpu",
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    held: list[float] = []
    trainer.save_checkpoint = timed(trainer.save_checkpoint, held)
    found = sorted(Path(job.folder).glob("*.ckpt"), key=lambda path: int(path.stem.removeprefix("step=")))
    trainer.fit(module, ckpt_path=found[-1] if job.resume else None)
    return result(job, watch.began, module, module.net, held)
