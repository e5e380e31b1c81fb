"""SmaQ, or a format that it is compared with, on everything that a training holds."""

from __future__ import annotations

from typing import Any, final

import torch

from dynaquant_core.experiments.config.systems import SmaqSystem
from dynaquant_core.experiments.systems.base import System
from dynaquant_core.experiments.trainer import Trainer
from dynaquant_core.memory import smaq

__all__ = ["Coded"]


@final
class Coded(System):
    """`memory.smaq.apply`; its rounding is drawn from the run's seed.

    Args:
        trainer: see `System`.
        section: what is coded, and how.

    Raises:
        ConfigError: there is no such format, or it has no such setting.
    """

    def __init__(self, trainer: Trainer, section: SmaqSystem) -> None:
        super().__init__(trainer)
        settings = section.model_dump(exclude={"name"})
        draws = torch.Generator().manual_seed(trainer.order)
        self._handle = smaq.apply(trainer.model, trainer.optimizer, **settings, generator=draws)

    def facts(self) -> dict[str, Any]:
        """Raw over stored bytes of all that was coded, and of each role; what packed maps took at most."""
        report = self._handle.report()
        memory = report.pop("memory", None)
        raw, stored = (sum(role[name] for role in report.values()) for name in ("raw_bytes", "stored_bytes"))
        return {
            "smaller": raw / stored if stored else None,
            "roles": {role: tally["benefit"] for role, tally in report.items()},
            "not_finite": sum(tally["not_finite"] for tally in report.values()),
            "peak_maps_bytes": None if memory is None else memory["peak"],
            "peak_maps_raw_bytes": None if memory is None else memory["peak_raw"],
        }
