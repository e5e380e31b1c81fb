"""A network that is pruned in the middle of its training: under SAMO, or dense with a mask on it."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, final

import torch
from torch import Tensor

from dynaquant_core.experiments.config.systems import PrunedSystem, SamoSystem
from dynaquant_core.experiments.systems.base import System
from dynaquant_core.experiments.trainer import Trainer
from dynaquant_core.memory import samo

__all__ = ["Masked", "Shrunk"]

DTYPES: Mapping[str, torch.dtype] = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}


@final
class Shrunk(System):
    """`memory.samo.wrap` after the first steps.

    Args:
        trainer: see `System`.
        section: what is pruned, and when.

    Raises:
        ConfigError: nothing of the model can be pruned.
    """

    def __init__(self, trainer: Trainer, section: SamoSystem) -> None:
        super().__init__(trainer)
        self._section = section
        self._handle: samo.Samo | None = None

    def advance(self) -> float:
        """A plain step, or one under SAMO."""
        if self._handle is None and self.trainer.step >= self._section.after:
            dtype, loss_scale = DTYPES[self._section.dtype], self._section.loss_scale
            self._handle = _wrapped(self.trainer, self._section, dtype, loss_scale)
            self.trainer.clipped = self._handle.parameters
            self.trainer.scaled = self._handle.scale
        return super().advance()

    def facts(self) -> dict[str, Any]:
        """Bytes of the training state, by the formula without SAMO over measured; and each of its terms.

        Beside them the steps that were left out because they overflowed.
        """
        if self._handle is None:
            return super().facts()
        report = samo.memory_report(self._handle)
        return {
            "smaller": report.dense / report.measured,
            "saved": report.saved,
            "measured_over_formula": report.measured / report.formula,
            "worst_term": max(abs(one.measured / one.formula - 1) for one in report.terms if one.formula),
            "kept": report.kept / report.parameters,
            "skipped": self._handle.skipped,
            "terms": [asdict(term) for term in report.terms],
        }


@final
class Masked(System):
    """The same masks on a dense training: pruned weights and their gradients are zero around each step.

    Args:
        trainer: see `System`.
        section: what is pruned, and when.

    Raises:
        ConfigError: nothing of the model can be pruned.
    """

    def __init__(self, trainer: Trainer, section: PrunedSystem) -> None:
        super().__init__(trainer)
        self._section = section
        self._masks: dict[str, Tensor] | None = None

    def advance(self) -> float:
        """A plain step, with what is pruned held at zero."""
        if self._masks is None and self.trainer.step >= self._section.after:
            self._masks = _masks(self.trainer, self._section)
            self._hold()
        loss = self.trainer.backward()
        self._hold()
        self.trainer.update()
        self._hold()
        return loss

    def facts(self) -> dict[str, Any]:
        """The share of the weights that is kept."""
        count = sum(parameter.numel() for parameter in self.trainer.model.parameters())
        gone = sum(int((~mask).sum()) for mask in (self._masks or {}).values())
        return super().facts() | {"kept": 1 - gone / count}

    @torch.no_grad()
    def _hold(self) -> None:
        weights = dict(self.trainer.model.named_parameters())
        for name, mask in (self._masks or {}).items():
            weights[name].masked_fill_(~mask, 0)
            gradient = weights[name].grad
            if gradient is not None:
                gradient.masked_fill_(~mask, 0)


def _wrapped(
    trainer: Trainer, section: SamoSystem | PrunedSystem, dtype: torch.dtype, loss_scale: float | None = None
) -> samo.Samo:
    settings = section.model_dump(include={"sparsity", "scope", "embeddings", "dense"})
    return samo.wrap(trainer.model, trainer.optimizer, dtype=dtype, loss_scale=loss_scale, **settings)


def _masks(trainer: Trainer, section: PrunedSystem) -> dict[str, Tensor]:
    """Those that SAMO would draw now, from a copy that it may change."""
    twin = copy.copy(trainer)
    twin.model, twin.optimizer = copy.deepcopy((trainer.model, trainer.optimizer))
    return _wrapped(twin, section, torch.float32).masks()
