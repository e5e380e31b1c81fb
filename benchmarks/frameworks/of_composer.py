"""A job in Composer: ``save_interval``, ``save_num_checkpoints_to_keep``, ``autoresume=True``."""

from __future__ import annotations

from typing import Any

import torch
from composer import Trainer
from composer.algorithms import GradientClipping
from composer.callbacks import CheckpointSaver
from composer.core import Callback
from composer.models import ComposerModel
from composer.optim import LinearScheduler
from composer.utils import reproducibility
from job import CLIP, RATE, Job, Material, loss_of, result, timed
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset
from torchmetrics import MeanMetric, Metric


class Characters(ComposerModel):
    """The model, and its loss as a metric."""

    def __init__(self, material: Material) -> None:
        super().__init__()
        self.net = material.model()

    def forward(self, batch: list[Tensor]) -> Tensor:
        """Logits."""
        logits: Tensor = self.net(batch[0])
        return logits

    def loss(self, outputs: Tensor, batch: list[Tensor]) -> Tensor:
        """Mean over all positions."""
        return loss_of(outputs, batch[1])

    def get_metrics(self, is_train: bool = False) -> dict[str, Metric]:  # noqa: ARG002 - Composer's
        """The loss, lower is better."""
        return {"Loss": MeanMetric()}

    def update_metric(self, batch: list[Tensor], outputs: Tensor, metric: Metric) -> None:
        """Adds a batch."""
        metric.update(self.loss(outputs, batch))


class Watch(Callback):
    """Notes where training begins, and ends the process where it is to die."""

    def __init__(self, job: Job) -> None:
        self.job, self.began = job, 0

    def fit_start(self, state: Any, logger: Any) -> None:  # noqa: ARG002 - an event's arguments
        """The first step, or the one that was restored."""
        self.began = int(state.timestamp.batch)

    def batch_end(self, state: Any, logger: Any) -> None:  # noqa: ARG002
        """After a step."""
        self.job.may_die(int(state.timestamp.batch))


def train(job: Job) -> dict[str, Any]:
    """Trains to the end, or to death."""
    reproducibility.seed_all(job.seed)
    material, watch = Material(job), Watch(job)
    model, interval, keep = Characters(material), f"{job.every}ba", job.keep or -1
    callbacks: list[Callback] = [watch]
    saving: dict[str, Any] = {"save_folder": job.folder, "save_interval": interval}
    saving["save_num_checkpoints_to_keep"] = keep
    if job.ours:
        from dynaquant_composer import DynaQuantCallback

        saving = {}
        callbacks.append(
            DynaQuantCallback(job.folder, interval, num_checkpoints_to_keep=keep, **job.options())
        )
    inputs, targets = (torch.cat(part) for part in zip(*material.search, strict=True))
    trainer = Trainer(
        model=model,
        train_dataloader=DataLoader(TensorDataset(material.inputs, material.targets), job.batch),
        eval_dataloader=DataLoader(TensorDataset(inputs, targets), 32) if job.search else None,
        optimizers=torch.optim.AdamW(model.parameters(), lr=RATE),
        schedulers=LinearScheduler(alpha_f=0.0),
        algorithms=GradientClipping("norm", CLIP),
        max_duration=f"{job.steps}ba",
        eval_interval=0,
        callbacks=callbacks,
        autoresume=job.resume,
        run_name="characters",
        seed=job.seed,
        device="cpu",
        progress_bar=False,
        **saving,
    )
    held: list[float] = []
    (saver,) = (one for one in trainer.state.callbacks if isinstance(one, CheckpointSaver))
    saver._save_checkpoint = timed(saver._save_checkpoint, held)
    trainer.fit()
    trainer.close()
    return result(job, watch.began, model, model.net, held)
