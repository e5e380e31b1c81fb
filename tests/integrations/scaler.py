"""Mixed precision of 16 bits with a gradient scaler, where a framework has it on a GPU only."""

from __future__ import annotations

from typing import Any

import torch

#: It overflows at once, comes down, and grows after five steps that did not.
SETTINGS = {"init_scale": 2.0**20, "growth_interval": 5}


def put_into(accelerator: Any) -> torch.amp.GradScaler:
    """Does to an accelerator with ``mixed_precision="fp16"`` on a CPU what it does by itself on a GPU.

    That is two attributes, set before anything is prepared: `Accelerator.prepare`, ``backward``, the clipping
    and the files then go their usual ways.
    """
    assert accelerator.mixed_precision == "fp16"
    assert accelerator.scaler is None
    accelerator.native_amp = True
    accelerator.scaler = torch.amp.GradScaler("cpu", **SETTINGS)
    return accelerator.scaler


def fresh() -> dict[str, Any]:
    """The state with which every scaler begins."""
    return torch.amp.GradScaler("cpu", **SETTINGS).state_dict()
