"""A mask's bits in kernels for a device, and what kernels of chunks share."""

# mypy: ignore-errors
import triton
import triton.language as tl

__all__ = ["MANY", "TILE", "VARYING", "flags_at", "store_flags"]

#: Values that the threads of a program work on at a time.
TILE = 2048

#: Sums over chunks are made of so many at a time.
MANY = tl.constexpr(1024)

#: Arguments that vary from call to call: no kernel is compiled anew for a value of theirs.  A tensor's size
#: is none of them: one that is a multiple of 16 lets a thread load several values at once.
VARYING = ["chunks", "key", "first", "last", "inner_width", "outer_width"]


@triton.jit
def store_flags(flags, mask, start, size, TILE: tl.constexpr):
    """Writes the bits of a tile from ``start``, a multiple of 8, on; values beyond ``size`` have none."""
    at = start + tl.arange(0, TILE)
    bits = tl.reshape((flags & (at < size)).to(tl.int32), (TILE // 8, 8)) << tl.arange(0, 8)[None, :]
    byte = start // 8 + tl.arange(0, TILE // 8)
    tl.store(mask + byte, tl.sum(bits, axis=1).to(tl.uint8), mask=byte * 8 < size)


@triton.jit
def flags_at(mask, at, inside):
    """Int32: the bit of each value, 0 where none is."""
    byte = tl.load(mask + at // 8, mask=inside, other=0).to(tl.int32)
    return (byte >> (at % 8).to(tl.int32)) & 1
