"""Whether a device's kernels do to gradients and weights what operations of torch do, tried once."""

from __future__ import annotations

import logging
from functools import cache
from typing import Final

import torch

from dynaquant_core.device_jit import fault
from dynaquant_core.memory.samo.groups import DTYPES, RUN

__all__ = ["agrees"]

logger = logging.getLogger(__name__)

#: Weights of a layer: several programs of the size that works, which Triton compiles kernels apart for.
SIZE: Final = 4 * RUN + 500


@cache
def agrees(device: torch.device) -> bool:
    """Tries the kernels; where they are wrong that is logged once, and layers are treated one by one.

    Raises what `device_jit.fault` raises.
    """
    wrong = fault(lambda: None if _right(device) and _written(device) else "they gave wrong numbers")
    if wrong is not None:
        logger.warning(
            "samo: the kernels that compress gradients of many layers, and write their weights, are not used "
            "on %s (%.300s); each layer is treated alone, which takes longer and gives the same bits.",
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
    for kind, dtype in enumerate(DTYPES):
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


@torch.no_grad()
def _written(device: torch.device) -> bool:
    """Weights of each dtype to their places, and nothing else."""
    from dynaquant_core.memory.samo.device_kernels import scatter

    index = torch.arange(0, SIZE, 3, dtype=torch.int32, device=device)
    flat = torch.linspace(-3000, 3000, index.numel(), dtype=torch.float32, device=device)
    runs = [[0, run] for run in range(-(-index.numel() // RUN))]
    blocks = torch.tensor(runs, dtype=torch.int32, device="cpu").to(device)
    pairs = []
    for dtype in DTYPES:
        found = torch.full((SIZE,), 9.0, dtype=dtype, device=device)
        expected = found.clone().index_copy_(0, index.long(), flat.to(dtype))
        row = [found.data_ptr(), index.data_ptr(), 0, index.numel()]
        scatter(flat, torch.tensor([row], dtype=torch.int64, device="cpu").to(device), blocks, dtype, RUN)
        pairs.append((found, expected))
    return all(torch.equal(found, expected) for found, expected in pairs)
