"""What a model trains on: batches that are a pure function of (seed, step), and two fixed evaluation sets."""

from __future__ import annotations

from dynaquant_core.experiments.data.dataset import Dataset
from dynaquant_core.experiments.data.registry import fingerprint, open_data

__all__ = ["Dataset", "fingerprint", "open_data"]
