"""Dithered codes as a kernel for a device: those of `dither_kernels`.  Imported only where Triton runs."""

# mypy: ignore-errors
import triton
import triton.language as tl

from dynaquant_core.quantize.device.offset_kernels import offset_at

__all__ = ["settle"]

PROTECTED = tl.constexpr(1)


@triton.jit(do_not_specialize=["key", "last"])
def settle(
    values, codes, offsets, levels, gaps, names, key: "u64", last: "i32", size: "i64",
    GIVEN: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """Gives each of floating[size] the code of a level beside it; what is protected stays.

    ``codes`` uint8[size], changed; ``levels`` float32[last + 2], ascending; ``gaps`` float32[last + 1]
    between them; ``names`` uint8[last + 2], code of each; ``offsets`` float32[size] where they are ``GIVEN``.
    """
    at = tl.program_id(0).to(tl.int64) * TILE + tl.arange(0, TILE)
    inside = at < size
    weight = tl.load(values + at, mask=inside, other=0.0).to(tl.float32)
    low = tl.zeros((TILE,), tl.int32)
    for level in range(1, last + 1):
        low += (weight >= tl.load(levels + level)).to(tl.int32)
    drawn = tl.load(offsets + at, mask=inside, other=0.0) if GIVEN else offset_at(key, at)
    share = (drawn + 0.5) * tl.load(gaps + low)
    above = (weight - tl.load(levels + low) > share).to(tl.int32)
    code = tl.load(codes + at, mask=inside, other=0)
    tl.store(codes + at, tl.where(code == PROTECTED, code, tl.load(names + low + above)), mask=inside)
