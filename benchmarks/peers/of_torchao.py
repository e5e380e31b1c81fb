"""torchao's low-bit AdamW: moments as blocks of codes with a scale each; weights are not its business."""

from __future__ import annotations

import time
from importlib import import_module
from pathlib import Path

import torch
from coder import Meets, Note, Tensors
from torch import Tensor, nn

from dynaquant_core.errors import ExperimentError

__all__ = ["TorchAO"]

#: Moment -> whether it has a sign.
KNOWN = {"exp_avg": True, "exp_avg_sq": False}


class TorchAO:
    """Recorded moments in the buffers that the optimizer itself would hold them in, by `torch.save`.

    Args:
        bits: 8 or 4.
    """

    def __init__(self, bits: int) -> None:
        self._optimizer = f"AdamW{bits}bit"

    def write(self, tensors: Tensors, folder: Path, meets: Meets) -> Note:  # noqa: ARG002 - nothing to choose
        """Writes ``moments.pt``."""
        started = time.perf_counter()
        torch.save(
            {name: self._quantised(name, tensor) for name, tensor in tensors.items()}, folder / "moments.pt"
        )
        return Note.since(started)

    def read(self, folder: Path) -> dict[str, Tensor]:
        """In float32, as the optimizer would see them at its next step."""
        import_module("torchao.optim")  # its tensors are known to torch.load from here on
        held = torch.load(folder / "moments.pt", weights_only=True)
        return {name: _full(tensor) for name, tensor in held.items()}

    def _quantised(self, name: str, tensor: Tensor) -> Tensor:
        moment = name.rpartition("/")[2]
        if moment not in KNOWN:
            raise ExperimentError(
                f"torchao: has no low-bit state for {moment}; it takes AdamW's moments only."
            )
        parameter = nn.Parameter(torch.empty_like(tensor))
        optimizer = getattr(import_module("torchao.optim"), self._optimizer)([parameter])
        # Its own rule: what has few values, or not a whole number of blocks, stays float32.
        buffer: Tensor = optimizer._new_buffer(parameter, KNOWN[moment])
        return buffer.detach().copy_(tensor)


def _full(tensor: Tensor) -> Tensor:
    return tensor.dequantize() if hasattr(tensor, "codes") else tensor
