"""The lattice's loops as kernels for a device, each one pass over a tensor: the bits of `lattice.kernels`.

Escapes are left to the driver, which finds them by their symbol.  Imported only where Triton runs.
"""

# mypy: ignore-errors
import triton
import triton.language as tl

from dynaquant_core.quantize.device.offset_kernels import offset_at

__all__ = ["place", "quantise"]

#: A symbol is k + MIDDLE; ESCAPE stands for a k that has none.
MIDDLE, ESCAPE = tl.constexpr(128), tl.constexpr(0)

#: Added and taken away again it rounds to the nearest even integer; any number that is farther out escapes.
ROUNDER, FAR = tl.constexpr(1.5 * 2.0**23), tl.constexpr(1024.0)


@triton.jit(do_not_specialize=["key"])
def quantise(values, symbols, escaped, step: "fp32", key: "u64", size: "i64", TILE: tl.constexpr):
    """Symbols uint8[size] of floating[size]; adds how many escape to ``escaped`` int64[1]."""
    at = tl.program_id(0).to(tl.int64) * TILE + tl.arange(0, TILE)
    inside = at < size
    x = tl.load(values + at, mask=inside, other=0.0).to(tl.float32)
    k = tl.div_rn(x, tl.zeros((TILE,), tl.float32) + step) - offset_at(key, at)
    k = (tl.where(tl.abs(k) < FAR, k, FAR) + ROUNDER) - ROUNDER  # NaN compares false
    symbol = tl.where(tl.abs(k) < MIDDLE, k.to(tl.int32) + MIDDLE, ESCAPE)
    tl.store(symbols + at, symbol.to(tl.uint8), mask=inside)
    found = tl.sum((inside & (symbol == ESCAPE)).to(tl.int32))
    tl.atomic_add(escaped, found.to(tl.int64), mask=found > 0, sem="relaxed")


@triton.jit(do_not_specialize=["key"])
def place(
    symbols, out, step: "fp32", low: "fp32", high: "fp32", key: "u64", size: "i64",
    BFLOAT16: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """Values, in the dtype of ``out``, of symbols uint8[size]; ``BFLOAT16``: it holds the bits of such."""
    at = tl.program_id(0).to(tl.int64) * TILE + tl.arange(0, TILE)
    inside = at < size
    k = (tl.load(symbols + at, mask=inside, other=0).to(tl.int32) - MIDDLE).to(tl.float32)
    value = tl.minimum(tl.maximum((k + offset_at(key, at)) * step, low), high)
    if BFLOAT16:  # to even, in whole numbers: Triton's interpreter would cut it off
        bits = value.to(tl.int32, bitcast=True)
        tl.store(out + at, ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).to(tl.int16), mask=inside)
    else:
        tl.store(out + at, value.to(out.dtype.element_ty), mask=inside)
