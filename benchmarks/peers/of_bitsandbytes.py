"""bitsandbytes' 8-bit AdamW: moments as blocks of 256 codes from a map; weights are not its business."""

from __future__ import annotations

import time
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from coder import Meets, Note, Tensors
from torch import Tensor

from dynaquant_core.errors import ExperimentError

__all__ = ["BitsAndBytes"]

#: As its AdamW8bit has them: values a block, and the smallest tensor that is quantised.
BLOCK, SMALLEST = 256, 4096

#: Moment -> whether it has a sign.
KNOWN = {"exp_avg": True, "exp_avg_sq": False}


class BitsAndBytes:
    """Recorded moments by the functions of its optimizer, `torch.save` of codes, scales and the two maps.

    Its CPU build does; CUDA is not needed.
    """

    def write(self, tensors: Tensors, folder: Path, meets: Meets) -> Note:  # noqa: ARG002 - nothing to choose
        """Writes ``moments.pt``."""
        started = time.perf_counter()
        library = _library()
        maps = {moment: library.create_dynamic_map(signed=signed) for moment, signed in KNOWN.items()}
        held: dict[str, Any] = {"maps": maps}
        for name, tensor in tensors.items():
            moment = name.rpartition("/")[2]
            if moment not in maps:
                raise ExperimentError(
                    f"bitsandbytes: {moment} is not a moment of AdamW; this peer takes no other."
                )
            if tensor.numel() < SMALLEST:
                held[name] = tensor
                continue
            codes, state = library.quantize_blockwise(tensor, code=maps[moment].clone(), blocksize=BLOCK)
            held[name] = {"codes": codes, "absmax": state.absmax}
        torch.save(held, folder / "moments.pt")
        return Note.since(started)

    def read(self, folder: Path) -> dict[str, Tensor]:
        """In float32, as the optimizer would see them at its next step."""
        held = torch.load(folder / "moments.pt", weights_only=True)
        maps = held.pop("maps")
        return {
            name: entry if isinstance(entry, Tensor) else _full(entry, maps[name.rpartition("/")[2]])
            for name, entry in held.items()
        }


def _full(entry: dict[str, Tensor], code: Tensor) -> Tensor:
    decoded: Tensor = _library().dequantize_blockwise(
        entry["codes"], absmax=entry["absmax"], code=code, blocksize=BLOCK
    )
    return decoded


def _library() -> Any:
    return import_module("bitsandbytes.functional")
