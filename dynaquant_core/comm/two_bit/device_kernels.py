"""Two-bit codes on a CUDA device in one pass, the bits of the CPU; imported only where Triton runs."""

# mypy: disable-error-code="name-defined,no-untyped-def,untyped-decorator,no-untyped-call"
from typing import Any, Final

import torch
import triton
import triton.language as tl
from torch import Tensor

from dynaquant_core.device_jit import on

__all__ = ["decode_sum", "encode"]

#: Bytes of codes that a program works on.
RUN: Final = 1024

#: Every operation is rounded, as on the CPU.
LAUNCH: Final[dict[str, Any]] = {"RUN": RUN, "enable_fp_fusion": False}


@triton.jit
def _encode(residual, gradient, packed, above: "fp32", below: "fp32", count, filled, RUN: tl.constexpr):
    byte = tl.program_id(0).to(tl.int64) * RUN + tl.arange(0, RUN)
    four = tl.arange(0, 4)[None, :]
    at = byte[:, None] * 4 + four
    inside = at < count
    before = tl.load(residual + at, mask=inside, other=0.0)
    held = before + tl.load(gradient + at, mask=inside, other=0.0).to(tl.float32)
    finite, up, down = tl.abs(held) < float("inf"), held >= above, held <= -below
    sent = tl.where(up, above, tl.where(down, -below, 0.0))
    tl.store(residual + at, tl.where(finite, held - sent, before), mask=inside)
    code = tl.where(finite, tl.where(up, 3, tl.where(down, 2, 0)), 1)
    together = tl.sum(tl.where(inside, code, 0) << (6 - 2 * four), axis=1)
    tl.store(packed + byte, together.to(tl.uint8), mask=byte < filled)


@triton.jit
def _decode_sum(
    gathered, out,
    above: "fp32", below: "fp32", divisor: "fp32", senders: "i32", stride, filled, RUN: tl.constexpr,
):  # fmt: skip
    byte = tl.program_id(0).to(tl.int64) * RUN + tl.arange(0, RUN)
    four = tl.arange(0, 4)[None, :]
    total = tl.zeros((RUN, 4), tl.float32)
    for sender in range(senders):
        row = gathered + tl.cast(sender, tl.int64) * stride
        code = (tl.load(row + byte, mask=byte < filled, other=0).to(tl.int32)[:, None] >> (6 - 2 * four)) & 3
        value = tl.where(code == 3, above, tl.where(code == 2, -below, 0.0))
        total += tl.where(code == 1, float("nan"), value)
    tl.store(out + byte[:, None] * 4 + four, tl.div_rn(total, divisor), mask=(byte < filled)[:, None])


def encode(residual: Tensor, values: Tensor, above: float, below: float) -> Tensor:
    """See `codes.encode`; ``values`` float32, bfloat16 or float16."""
    packed = residual.new_empty(-(-residual.numel() // 16) * 4, dtype=torch.uint8)
    if packed.numel():
        with on(residual.device):
            _encode[(triton.cdiv(packed.numel(), RUN),)](
                residual, values, packed, above, below, residual.numel(), packed.numel(), **LAUNCH
            )
    return packed


def decode_sum(gathered: Tensor, count: int, above: float, below: float, divisor: float) -> Tensor:
    """See `codes.decode_sum`."""
    senders, filled = gathered.shape
    out = gathered.new_empty(4 * filled, dtype=torch.float32)
    if filled:
        with on(gathered.device):
            _decode_sum[(triton.cdiv(filled, RUN),)](
                gathered, out, above, below, divisor, senders, gathered.stride(0), filled, **LAUNCH
            )
    return out[:count]
