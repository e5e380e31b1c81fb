"""The smallest kernel: whether Triton works on a device at all."""

import torch

# mypy: disable-error-code="no-untyped-def,untyped-decorator,no-untyped-call"
import triton
import triton.language as tl

__all__ = ["probe"]


@triton.jit
def _add(left, right, out, size: tl.constexpr):
    at = tl.arange(0, size)
    tl.store(out + at, tl.load(left + at) + tl.load(right + at))


def probe(device: torch.device) -> bool:
    """Adds two vectors on a device; whatever Triton raises where it cannot passes through."""
    left = torch.arange(32, dtype=torch.float32, device=device)
    out = torch.zeros_like(left)
    with torch.cuda.device(device):
        _add[(1,)](left, left + 1, out, size=32)
    return bool((out == 2 * left + 1).all())
