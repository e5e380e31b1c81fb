"""The generator of `lattice.offset_kernels` for kernels of a device.  Imported only where Triton runs."""

# mypy: ignore-errors
import triton
import triton.language as tl

__all__ = ["half_at", "offset_at"]

#: SplitMix64: the increment of its counter and the two factors of its finaliser.
GOLDEN = tl.constexpr(0x9E3779B97F4A7C15)
FIRST = tl.constexpr(0xBF58476D1CE4E5B9)
SECOND = tl.constexpr(0x94D049BB133111EB)

#: Both operations are exact in float32 for any 16-bit number.
UNIT, LOWEST = tl.constexpr(2.0**-16), tl.constexpr(2.0**-17 - 0.5)


@triton.jit
def half_at(key, index):
    """The 16-bit number, int32, that belongs to an int64 index."""
    z = key.to(tl.uint64) + ((index >> 2) + 1).to(tl.uint64) * GOLDEN
    z = (z ^ (z >> 30)) * FIRST
    z = (z ^ (z >> 27)) * SECOND
    z = z ^ (z >> 31)
    return ((z >> ((index & 3) * 16).to(tl.uint64)) & 0xFFFF).to(tl.int32)


@triton.jit
def offset_at(key, index):
    """The float32 offset, in (-.5, .5), of an int64 index."""
    return half_at(key, index).to(tl.float32) * UNIT + LOWEST
