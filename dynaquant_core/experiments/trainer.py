"""A model in training: everything a step needs, with no word about saving."""

from __future__ import annotations

import copy
import hashlib
import random
import time
from collections.abc import Callable, Iterable, Sequence

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from dynaquant_core.errors import ExperimentError
from dynaquant_core.experiments.config.experiment import Experiment
from dynaquant_core.experiments.data.dataset import IGNORED, Batch, Dataset
from dynaquant_core.experiments.data.registry import open_data
from dynaquant_core.experiments.models.registry import build
from dynaquant_core.experiments.optimizers import make_optimizer, make_scheduler
from dynaquant_core.experiments.scores import correlation
from dynaquant_core.state import bytes_of

__all__ = ["Trainer", "device_name", "diverged"]


def device_name() -> str:
    """Where training happens: ``"cuda"`` where there is one, else ``"cpu"``."""
    return "cuda" if torch.cuda.is_available() else "cpu"


class Trainer:
    """Model, optimizer, schedule and data of one run.

    What step n does depends on the run's state before it, the seed and n only; so a process that restores
    that state, and sets `step`, goes on exactly where another one stopped.

    Args:
        experiment: one run (`expand`).
        data: of an earlier trainer of the same experiment, so that it is not read again.

    Attributes:
        order: what batches are drawn by, with the step: the seed of the run.
        clipped: gives the parameters whose gradients are clipped together: the model's, unless a system
            (`systems`) holds them elsewhere.
        scaled: what the backward pass begins from, made of the loss: the loss itself, unless a system scales.
        step: optimizer steps done.
        seconds: time spent in `advance` by this process.

    Raises:
        ExperimentError: the data is missing or too small.
    """

    def __init__(self, experiment: Experiment, data: Dataset | None = None) -> None:
        self._experiment = experiment
        self._device = torch.device(device_name())
        _seed_everything(experiment.seed)
        if data is None:
            data = open_data(experiment.data, evaluation_batch=experiment.evaluate.batch)
        self.data = data
        self.model = build(experiment, self.data.classes).to(self._device).train()
        self.optimizer = make_optimizer(experiment.optimizer, self.model)
        self.scheduler = make_scheduler(experiment.optimizer, self.optimizer, experiment.steps)
        self.order = experiment.seed
        self.clipped: Callable[[], Iterable[torch.Tensor]] = self.model.parameters
        self.scaled: Callable[[torch.Tensor], torch.Tensor] = lambda loss: loss
        self.step = 0
        self.seconds = 0.0

    def advance(self) -> float:
        """One optimizer step; returns its training loss.

        Raises:
            ExperimentError: the loss is not finite.
        """
        started = time.perf_counter()
        value = self.backward()
        self.update()
        if not np.isfinite(value):
            raise ExperimentError(diverged(value, self.step))
        self.seconds += time.perf_counter() - started
        return value

    def backward(self) -> float:
        """Gradients of the next step's batch; returns its training loss, which may not be finite."""
        inputs, targets = self._moved(self.data.batch(self.order, self.step))
        self.optimizer.zero_grad(set_to_none=True)
        loss = _loss(self.model(inputs), targets)
        self.scaled(loss).backward()  # type: ignore[no-untyped-call]
        return float(loss.detach())

    def update(self) -> None:
        """The step that `backward`'s gradients ask for."""
        if self._experiment.optimizer.clip is not None:
            nn.utils.clip_grad_norm_(self.clipped(), self._experiment.optimizer.clip)
        self.optimizer.step()
        self.scheduler.step()
        self.step += 1

    def quality(self, batches: Sequence[Batch], model: nn.Module | None = None) -> list[float]:
        """The experiment's metric on each batch, of this model or of ``model``; training flags are kept.

        A correlation is one value for all batches together.
        """
        model = self.model if model is None else model
        flags = [(module, module.training) for module in model.modules()]
        model.eval()
        try:
            with torch.no_grad():
                if self._experiment.evaluate.metric == "correlation":
                    return [self._correlation(model, batches)]
                return [self._metric(model, batch) for batch in batches]
        finally:
            for module, training in flags:
                module.training = training

    def digest(self) -> str:
        """Hex digest of every tensor of the model: two runs of one digest ended in the same bits."""
        words = hashlib.blake2b(digest_size=16)
        for name, tensor in self.model.state_dict().items():
            words.update(name.encode())
            words.update(bytes_of(tensor.cpu()).numpy().tobytes())
        return words.hexdigest()

    def reader(self) -> nn.Module:
        """A second model of the same shape, for decoded weights."""
        return copy.deepcopy(self.model).eval().requires_grad_(requires_grad=False)

    def _metric(self, model: nn.Module, batch: Batch) -> float:
        inputs, targets = self._moved(batch)
        logits = model(inputs)
        if self._experiment.evaluate.metric == "loss":
            return float(_loss(logits, targets))
        scored = targets != IGNORED
        return float((logits.argmax(-1) == targets)[scored].float().mean())

    def _correlation(self, model: nn.Module, batches: Sequence[Batch]) -> float:
        pairs = [(model(inputs), targets) for inputs, targets in map(self._moved, batches)]
        predicted, wanted = (torch.cat(part).float().cpu().numpy() for part in zip(*pairs, strict=True))
        return correlation(predicted, wanted)

    def _moved(self, batch: Batch) -> Batch:
        inputs, targets = batch
        return inputs.to(self._device), targets.to(self._device)


def diverged(loss: float, step: int) -> str:
    """What to say of a loss that is no number."""
    return f"training loss is {loss} at step {step}; lower optimizer.lr or set optimizer.clip."


def _loss(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Mean over the targets that are not `IGNORED`; of targets that are no classes, the squared error."""
    if targets.is_floating_point():
        return functional.mse_loss(logits, targets)
    return functional.cross_entropy(logits.flatten(0, -2), targets.flatten(), ignore_index=IGNORED)


def _seed_everything(seed: int) -> None:
    random.seed(seed)
    np.random.seed(seed)  # noqa: NPY002 - the legacy stream is part of what a checkpoint restores
    torch.manual_seed(seed)
