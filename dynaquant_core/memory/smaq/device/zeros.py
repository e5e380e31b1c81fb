"""`zeros` in one launch or two on a device: values that are not zero, moved up, and back to their places."""

from __future__ import annotations

import torch
from torch import Tensor

from dynaquant_core.device_jit import on
from dynaquant_core.memory.smaq.chunks import CHUNK, chunk_count
from dynaquant_core.memory.smaq.device import survey_kernels as kernels
from dynaquant_core.memory.smaq.device.flag_kernels import TILE

__all__ = ["join", "split"]


def split(flat: Tensor, counts: Tensor, kept: int) -> tuple[Tensor, Tensor]:
    """(values that are not zero, their mask), as `zeros.split`.

    Args:
        flat: floating[n] on a device.
        counts: float64[chunks]: how many of each chunk are not zero.
        kept: how many those are.
    """
    size = flat.numel()
    values, mask = flat.new_empty(kept), flat.new_empty(-(-size // 8), dtype=torch.uint8)
    with on(flat.device):
        kernels.compact[(chunk_count(size),)](
            flat, counts, values, mask, size, CHUNK=CHUNK, TILE=TILE, num_warps=8, enable_fp_fusion=False
        )
    return values, mask


def join(values: Tensor, mask: Tensor, size: int) -> Tensor:
    """Undoes `split`: [size] of the dtype of ``values``."""
    out = values.new_empty(size)
    counts = torch.empty(chunk_count(size), dtype=torch.int32, device=values.device)
    with on(values.device):
        kernels.count_flags[(counts.numel(),)](
            mask, counts, size, CHUNK=CHUNK, num_warps=4, enable_fp_fusion=False
        )
        kernels.expand[(counts.numel(),)](
            values, counts, mask, out, size, CHUNK=CHUNK, TILE=TILE, num_warps=8, enable_fp_fusion=False
        )
    return out
