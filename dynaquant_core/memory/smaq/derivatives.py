"""A derivative that a forward pass takes (forces of an energy, a network of physics) is of what was packed.

It is as far off as gradients are, and that one is coming cannot be known while maps are saved.  So the log
says it.
"""

from __future__ import annotations

import logging
from typing import Any

import torch
from torch import Tensor

from dynaquant_core.memory.smaq.held import is_packed, unpack

__all__ = ["Derivatives", "Reading"]

logger = logging.getLogger(__name__)


class Derivatives:
    """Says once of a model that its forward pass takes derivatives."""

    def __init__(self) -> None:
        self._said = False

    def say(self) -> None:
        """Says it."""
        if not self._said:
            logger.warning(
                "SmaQ: the forward pass takes a derivative through packed maps, so that it is not exact; "
                "where it has to be, have it differentiate what was computed under "
                "torch.autograd.graph.saved_tensors_hooks(torch.Tensor.detach, lambda one: one)."
            )
        self._said = True


class Reading:
    """Gives back what one forward pass has packed, in it or after it.

    Args:
        derivatives: is told of one in it; None: what is read in it is no matter.
    """

    def __init__(self, derivatives: Derivatives | None) -> None:
        self._derivatives = derivatives

    def read(self, kept: Any) -> Tensor:
        """The tensor that a node saved.

        A backward pass that is itself to be differentiated has gradients on; one of a training loop that
        torch runs as a forward pass (Lightning's manual optimization) has not.
        """
        if self._derivatives is not None and torch.is_grad_enabled() and is_packed(kept):
            self._derivatives.say()
        return unpack(kept)

    def close(self) -> None:
        """The forward pass is over."""
        self._derivatives = None
