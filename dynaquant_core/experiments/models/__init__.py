"""The models that experiments train, and the table of them by name."""

from __future__ import annotations

from dynaquant_core.experiments.models.registry import build

__all__ = ["build"]
