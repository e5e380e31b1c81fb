"""Whether a device's kernel compresses gradients as torch's operations do, tried once in a process."""

from __future__ import annotations

import logging
from functools import cache
from typing import Final

import torch

from dynaquant_core.device_jit import fault
from dynaquant_core.memory.samo.groups import RUN

__all__ = ["agrees"]

logger = logging.getLogger(__name__)

#: Weights of a layer: several programs of the size that works, which Triton compiles kernels apart for.
SIZE: Final = 2 * RUN + 500


@cache
def agrees(device: torch.device) -> bool:
    """Tries the kernel; where it is wrong that is logged once, and layers are compressed one by one.

    Raises what `device_jit.fault` raises.
    """
    wrong = fault(lambda: None if _right(device) else "it gave wrong numbers")
    if wrong is not None:
        logger.warning(
            "samo: the kernel that compresses gradients of many layers is not used on %s (%.300s); each "
            "is compressed alone, which takes longer and gives the same bits.",
            device,
            wrong,
        )
    return wrong is None


@torch.no_grad()
def _right(device: torch.device) -> bool:
    """Layers of each dtype, with an index and without, added to what is there and not, in one launch."""
    from dynaquant_core.memory.samo.device_kernels import gather

    inverse, programs, rows = 2.0**-10, 0, []
    held, expected, found = [], [], []
    index = torch.arange(0, SIZE, 3, dtype=torch.int32, device=device)
    for kind, dtype in enumerate((torch.float16, torch.bfloat16, torch.float32)):
        dense = torch.linspace(-3000, 3000, SIZE, dtype=torch.float32, device=device).to(dtype)
        for pruned in (True, False):
            kept = dense[index.long()] if pruned else dense
            for adding in (True, False):
                out = torch.linspace(-1, 1, kept.numel(), dtype=torch.float32, device=device)
                new = kept.to(torch.float32) * inverse  # exact, so that a fused addition is the same
                expected.append(out + new if adding else new)
                address = index.data_ptr() if pruned else 0
                row = [dense.data_ptr(), kind, address, out.data_ptr(), int(adding), kept.numel(), programs]
                rows.append(row)
                programs += -(-kept.numel() // RUN)
                held.append(dense)
                found.append(out)
    gather(torch.tensor(rows, dtype=torch.int64, device="cpu").to(device), programs, inverse, RUN)
    return all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))
