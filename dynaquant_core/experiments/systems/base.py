"""What a system does in a training: whatever comes before a step, the step itself, and what it has to say."""

from __future__ import annotations

from typing import Any

from dynaquant_core.experiments.trainer import Trainer

__all__ = ["System"]


class System:
    """A training that nothing shrinks; systems take over what they change.

    Args:
        trainer: freshly made, or with pre-trained weights in it.

    Attributes:
        trainer: whose model is measured.
    """

    def __init__(self, trainer: Trainer) -> None:
        self.trainer = trainer

    def advance(self) -> float:
        """One optimizer step; returns its training loss, which may not be finite."""
        loss = self.trainer.backward()
        self.trainer.update()
        return loss

    def facts(self) -> dict[str, Any]:
        """What the run held or moved, JSON-ready.

        Returns:
            ``smaller``: bytes without the system over bytes with it; None where nothing is shrunk.  Beside
            it whatever the system counts.
        """
        return {"smaller": None}
