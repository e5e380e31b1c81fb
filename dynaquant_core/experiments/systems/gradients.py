"""Replicas in one process, whose gradients are reduced in two bits."""

from __future__ import annotations

from typing import Any, final

from dynaquant_core.comm import two_bit
from dynaquant_core.experiments.config.experiment import Experiment
from dynaquant_core.experiments.config.systems import TwoBitSystem
from dynaquant_core.experiments.data.dataset import drawn
from dynaquant_core.experiments.systems.base import System
from dynaquant_core.experiments.trainer import Trainer

__all__ = ["Reduced"]


@final
class Reduced(System):
    """`comm.two_bit.LocalReducer`, which reduces as ranks under DDP do, bit for bit.

    The replicas begin alike; each draws batches of its own.

    Args:
        trainer: the first replica, see `System`.
        section: threshold, warm-up and number of replicas.
        experiment: the run, of which the other replicas are made.

    Raises:
        ConfigError: the settings do not fit the model.
    """

    def __init__(self, trainer: Trainer, section: TwoBitSystem, experiment: Experiment) -> None:
        super().__init__(trainer)
        self._replicas = [trainer]
        for number in range(1, section.replicas):
            other = Trainer(experiment, trainer.data)
            other.model.load_state_dict(trainer.model.state_dict())
            other.order = int(drawn("replica", experiment.seed, number).integers(1 << 62))
            self._replicas.append(other)
        dense = section.threshold is None
        self._reducer = two_bit.LocalReducer(
            [each.model for each in self._replicas],
            threshold=1.0 if section.threshold is None else section.threshold,
            negative_threshold=section.negative_threshold,
            warmup=experiment.steps if dense else section.warmup,
        )

    def advance(self) -> float:
        """One step of every replica; returns the mean of their losses."""
        losses = [each.backward() for each in self._replicas]
        self._reducer.reduce()
        for each in self._replicas:
            each.update()
        return sum(losses) / len(losses)

    def facts(self) -> dict[str, Any]:
        """Bytes that replicas handed in, in float32 over what they were; the warm-up is counted dense."""
        handed, dense = self._reducer.handed_bytes, self._reducer.dense_bytes
        return {"smaller": dense / handed if handed else None, "handed_bytes": handed, "dense_bytes": dense}
