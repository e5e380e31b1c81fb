"""SAMO: a pruned network whose training state exists only where weights are left (arXiv 2302.05045).

Example:
    >>> import torch
    >>> from dynaquant_core.memory import samo
    >>> model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Linear(64, 4))
    >>> optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    >>> handle = samo.wrap(model, optimizer, sparsity=0.9)
    >>> round(handle.sparsity, 2)
    0.89
"""

from __future__ import annotations

from dynaquant_core.memory.samo.early_bird import EarlyBird
from dynaquant_core.memory.samo.masks import magnitude_masks
from dynaquant_core.memory.samo.pipeline import plan
from dynaquant_core.memory.samo.report import memory_report
from dynaquant_core.memory.samo.wrap import Samo, wrap

__all__ = ["EarlyBird", "Samo", "magnitude_masks", "memory_report", "plan", "wrap"]
