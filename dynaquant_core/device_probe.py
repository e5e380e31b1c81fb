"""A small kernel with what the others are made of: whether Triton works on a device at all."""

# mypy: disable-error-code="no-untyped-def,untyped-decorator,no-untyped-call"
import torch
import triton
import triton.language as tl

__all__ = ["probe"]

SIZE = 64


@triton.jit
def _try(values, sums, quotients, words, size: tl.constexpr):
    at = tl.arange(0, size)
    x = tl.load(values + at).to(tl.float32)
    tl.store(sums + at, tl.cumsum(x.to(tl.int32), 0).to(tl.float64))
    tl.store(quotients + at, tl.div_rn(x, tl.full((size,), 3.0, tl.float32)))
    words += 8 * at[:, None] + tl.arange(0, 8)[None, :]
    key = at.to(tl.uint64) * 0x9E3779B97F4A7C15
    tl.store(words, ((key[:, None] >> (8 * tl.arange(0, 8)).to(tl.uint64)[None, :]) & 0xFF).to(tl.uint8))


def probe(device: torch.device) -> bool:
    """Whether sums, quotients, casts and long words are right; what Triton raises passes through.

    Args:
        device: the current one.
    """
    numbers = torch.arange(SIZE, device="cpu")
    values = numbers.to(device, torch.bfloat16)
    sums = torch.zeros(SIZE, dtype=torch.float64, device=device)
    quotients = torch.zeros(SIZE, dtype=torch.float32, device=device)
    words = torch.zeros(8 * SIZE, dtype=torch.uint8, device=device)
    _try[(1,)](values, sums, quotients, words, size=SIZE, enable_fp_fusion=False)
    keys = [number * 0x9E3779B97F4A7C15 % 2**64 for number in range(SIZE)]
    three = torch.tensor(3.0, dtype=torch.float32, device="cpu")
    return (
        torch.equal(sums.cpu(), numbers.cumsum(0).double())
        and torch.equal(quotients.cpu(), numbers.float() / three)
        and bytes(words.tolist()) == b"".join(key.to_bytes(8, "little") for key in keys)
    )
