"""Two-bit codes of gradients: what is sent, what is held back, and what the receivers add up.

Guarantee: what an encoder held before, plus its gradient, is what the code stands for plus what it holds
afterwards, up to the rounding of one float32 addition and one subtraction an element.

Golden example (MXNet pull request 8662): the codes 00 11 00 10 11 00 00 10 are the bytes 32 C2.

Example:
    >>> residual = torch.zeros(8)
    >>> gradient = torch.tensor([0.0, 0.5, 0.2, -0.5, 0.7, 0.0, -0.4, -0.9])
    >>> packed = encode(residual, gradient, 0.5, 0.5)
    >>> bytes(packed.tolist()).hex(" "), residual[4].item()
    ('32 c2 00 00', 0.19999998807907104)
    >>> decode_sum(packed[None], 8, 0.5, 0.5).tolist()
    [0.0, 0.5, 0.0, -0.5, 0.5, 0.0, 0.0, -0.5]
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import suppress

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dynaquant_core import device_jit
from dynaquant_core.comm.two_bit import kernels
from dynaquant_core.config import require, require_number
from dynaquant_core.errors import StateMismatchError, UnsupportedStateError
from dynaquant_core.threads import map_threads, slices

__all__ = [
    "FLOATS",
    "IN_BYTE",
    "decode_sum",
    "encode",
    "lost_to_rounding",
    "packed_bytes",
    "require_floating",
]

#: Dtypes of gradients; each is added to a residual of float32.
FLOATS = (torch.float32, torch.bfloat16, torch.float16, torch.float64)

#: Codes in a byte, and in a word of 32 bits.
IN_BYTE, IN_WORD = 4, 16

#: Bytes of codes that make a thread worth its hand-over: a mebibyte of float32.
SLICE = 1 << 16

#: Bytes of codes that a device works on at a time: 16 MB of gradients.
DEVICE_PIECE = 1 << 20

#: Codes of a block: with its residual and gradient they stay in a core's own cache.
BLOCK = 1 << 14

Floats = NDArray[np.float32]
Bytes = NDArray[np.uint8]


def packed_bytes(count: int) -> int:
    """Bytes that ``count`` codes take: whole words of 32 bits.

    Example:
        >>> [packed_bytes(count) for count in (0, 1, 16, 17)]
        [0, 4, 4, 8]
    """
    return -(-count // IN_WORD) * 4


def require_floating(tensor: Tensor, name: str) -> None:
    """Raises UnsupportedStateError unless gradients of this tensor's dtype can be compressed."""
    if tensor.dtype not in FLOATS or tensor.layout != torch.strided:
        known = ", ".join(str(dtype).removeprefix("torch.") for dtype in FLOATS)
        raise UnsupportedStateError(
            f"two_bit: {name} is a {tensor.layout} tensor of {tensor.dtype}; expected a dense one of "
            f"{known}; leave it out of what is compressed."
        )


def encode(residual: Tensor, gradient: Tensor, above: float, below: float) -> Tensor:
    """Adds a gradient to a residual and takes out what its code says.

    ``residual += gradient``; from ``above`` on the code is 11 and ``above`` is taken off, from ``-below``
    down it is 10 and ``below`` is added, else it is 00.  An element whose sum is not finite (a gradient that
    is NaN or infinite, or an overflow) gets the code 01, which receivers decode as NaN, and its residual
    stays as it was.

    Args:
        residual: float32[n], contiguous; changed in place.
        gradient: float32, bfloat16, float16 or float64[n], on the same device.
        above: threshold of positive sums, above 0, as float32 has it.
        below: size of that of negative sums, likewise.

    Returns:
        uint8[packed_bytes(n)] on that device, codes beyond n being 00: four codes a byte, the first in the
        two high bits.

    Raises:
        UnsupportedStateError: the gradient is of another dtype, or sparse.
        StateMismatchError: residual and gradient are not of one size or on one device, or the residual is no
            flat float32.
        ConfigError: a threshold is no number that float32 has as finite and above 0; something is no tensor.

    Source: MXNet pull request 8662; the code 01 is ours.
    """
    _require_limits(above, below)
    for name, tensor in (("residual", residual), ("gradient", gradient)):
        found = type(tensor).__name__
        require(isinstance(tensor, Tensor), f"two_bit: the {name} is {found}, expected a tensor.")
    residual = residual.detach()
    require_floating(gradient, "a gradient")
    _require_flat(residual, gradient.numel())
    if residual.device != gradient.device:
        raise StateMismatchError(
            f"two_bit: the residual is on {residual.device} and the gradient on {gradient.device}; expected "
            "both on one; move the residual with the model."
        )
    values = gradient.detach().reshape(-1)
    if device_jit.compiles(residual.device):
        from dynaquant_core.comm.two_bit import device_kernels

        wide = values.float() if values.dtype == torch.float64 else values
        return device_kernels.encode(residual, wide.contiguous(), above, below)
    values = values.float()
    if residual.device.type == "cpu":
        packed = torch.empty(packed_bytes(residual.numel()), dtype=torch.uint8, device="cpu")
        _encode_on_host(residual.numpy(), values.contiguous().numpy(), above, below, packed.numpy())
        return packed
    return encode_by_torch(residual, values, above, below)


def decode_sum(gathered: Tensor, count: int, above: float, below: float, divisor: float = 1.0) -> Tensor:
    """What the senders' codes stand for, added up in float32 in their order, over ``divisor``.

    Args:
        gathered: uint8[senders, packed_bytes(count)], contiguous in its rows.
        count: elements.
        above: threshold that the senders encoded with.
        below: likewise.
        divisor: the number of senders for a mean, 1 for a sum.

    Returns:
        float32[count] on the same device: bit for bit the same for whoever decodes the same bytes; NaN where
        a sender's code is 01.

    Raises:
        StateMismatchError: the codes are no bytes, or the rows not of the length that ``count`` codes take.
        ConfigError: a threshold is no number that float32 has as finite and above 0; ``count`` or ``divisor``
            is out of range.
    """
    _require_limits(above, below)
    whole = isinstance(count, int) and not isinstance(count, bool) and count >= 0
    require(whole, f"two_bit: count must be a whole number from 0, got {count!r}.")
    require_number("two_bit", "divisor", divisor, 2.0**-64, 2.0**64)
    if gathered.dtype != torch.uint8:
        raise StateMismatchError(
            f"two_bit: codes are of {gathered.dtype}, expected torch.uint8, four codes a byte; hand over "
            f"what encode returned."
        )
    if gathered.dim() != 2 or gathered.shape[1] != packed_bytes(count):
        raise StateMismatchError(
            f"two_bit: codes of shape {tuple(gathered.shape)} cannot hold {count} elements a sender; "
            f"expected (senders, {packed_bytes(count)}); all ranks must compress the same tensors."
        )
    if device_jit.compiles(gathered.device):
        from dynaquant_core.comm.two_bit import device_kernels

        rows = gathered if gathered.stride(1) == 1 else gathered.contiguous()
        return device_kernels.decode_sum(rows, count, above, below, divisor)
    if gathered.device.type != "cpu":
        return decode_by_torch(gathered, count, above, below, divisor)
    out = torch.empty(gathered.shape[1] * IN_BYTE, dtype=torch.float32, device="cpu")
    table, values, codes = _table(above, below), out.numpy(), gathered.numpy()

    def work(part: slice) -> None:
        share = slice(part.start * IN_BYTE, part.stop * IN_BYTE)
        kernels.decode_sum(codes[:, part], table, np.float32(divisor), values[share])

    map_threads(work, slices(codes.shape[1], SLICE))
    return out[:count]


def lost_to_rounding(total: Tensor, rounded: Tensor, share: float) -> Tensor | None:
    """A sender's share of what a value lost on arriving in a narrower dtype, to go back into its residual.

    Args:
        total: float32, any shape.
        rounded: the same in the gradients' dtype.
        share: of this sender.

    Returns:
        float32 of that shape, 0 where either is not finite; None where nothing can be lost.

    Example:
        >>> total = torch.tensor([1.001953125, torch.inf])
        >>> lost_to_rounding(total, total.bfloat16(), 0.5).tolist()
        [0.0009765625, 0.0]
    """
    if rounded.element_size() >= total.element_size():
        return None
    return (total - rounded.float()).nan_to_num_(nan=0.0, posinf=0.0, neginf=0.0).mul_(share)


# -- the same with torch operations, for any device ----------------------------------------------


def encode_by_torch(residual: Tensor, values: Tensor, above: float, below: float) -> Tensor:
    """`encode` of float32[n] as operations of torch; bit for bit what the kernel does."""
    packed = torch.empty(packed_bytes(values.numel()), dtype=torch.uint8, device=values.device)
    numbers = residual.new_tensor([0.0, above, -below])  # numbers alone would be of the default dtype
    for part in _pieces(packed.numel()):
        share = slice(part.start * IN_BYTE, part.stop * IN_BYTE)
        codes = _coded(residual[share], values[share], above, below, numbers)
        rest = (part.stop - part.start) * IN_BYTE - codes.numel()
        padded = torch.nn.functional.pad(codes, (0, rest)) if rest else codes
        first, second, third, fourth = padded.view(-1, IN_BYTE).unbind(1)
        packed[part] = (first << 6) | (second << 4) | (third << 2) | fourth
    return packed


def _coded(residual: Tensor, values: Tensor, above: float, below: float, numbers: Tensor) -> Tensor:
    """Codes of one piece, uint8[n]; its residual is changed."""
    held = residual + values
    finite = held.isfinite()
    up = finite & (held >= above)
    down = finite & (held <= -below)
    zero, plus, minus = numbers
    sent = torch.where(up, plus, torch.where(down, minus, zero))
    residual.copy_(torch.where(finite, held - sent, residual))
    return 3 * up.byte() + 2 * down.byte() + (~finite).byte()


def decode_by_torch(gathered: Tensor, count: int, above: float, below: float, divisor: float) -> Tensor:
    """`decode_sum` as operations of torch; bit for bit what the kernel does."""
    fours = torch.from_numpy(_fours(above, below)).to(gathered.device).t().contiguous()
    out = torch.empty((gathered.shape[1], IN_BYTE), dtype=torch.float32, device=gathered.device)
    for part in _pieces(gathered.shape[1]):
        total = torch.zeros((IN_BYTE, part.stop - part.start), dtype=torch.float32, device=gathered.device)
        for row in gathered[:, part]:
            total += fours.index_select(1, row.int())
        out[part] = total.div_(divisor).t()
    return out.view(-1)[:count]


def _pieces(count: int) -> Iterator[slice]:
    """Bytes of codes that are worked on at a time, so that what is needed besides stays small."""
    for start in range(0, count, DEVICE_PIECE):
        yield slice(start, min(start + DEVICE_PIECE, count))


# -- on the host ---------------------------------------------------------------------------------


def _encode_on_host(residual: Floats, values: Floats, above: float, below: float, packed: Bytes) -> None:
    """Whole bytes in slices over threads; the up to three elements behind them apart."""
    whole = residual.size // IN_BYTE
    limits = np.float32(above), np.float32(below)
    packed[whole:] = 0  # the rest of the last word

    def work(part: slice) -> None:
        share = slice(part.start * IN_BYTE, part.stop * IN_BYTE)
        kernels.encode(residual[share], values[share], *limits, *_scratch(), packed[part])

    map_threads(work, slices(whole, SLICE))
    rest = residual[whole * IN_BYTE :]
    if rest.size:
        padded, last = np.zeros((2, IN_BYTE), np.float32)
        padded[: rest.size], last[: rest.size] = rest, values[whole * IN_BYTE :]
        kernels.encode(padded, last, *limits, *_scratch(), packed[whole : whole + 1])
        rest[:] = padded[: rest.size]


def _scratch() -> tuple[Bytes, NDArray[np.uint32]]:
    """A block's codes, a byte each, and the same memory as words."""
    codes = np.empty(BLOCK, np.uint8)
    return codes, codes.view("<u4")


def _table(above: float, below: float) -> Floats:
    """What each code stands for, float32[4]."""
    return np.array([0.0, np.nan, -below, above], np.float32)


def _fours(above: float, below: float) -> Floats:
    """What each byte stands for, float32[256, 4]."""
    byte = np.arange(256)[:, None] >> np.array([6, 4, 2, 0])
    fours: Floats = _table(above, below)[byte & 3]
    return fours


def _require_limits(*limits: float) -> None:
    for limit in limits:
        rounded = 0.0
        if isinstance(limit, int | float):
            with np.errstate(over="ignore", under="ignore"), suppress(OverflowError):
                rounded = float(np.float32(limit))
        good = 0 < rounded < math.inf
        require(good, f"two_bit: thresholds must be above 0 and finite in float32, got {limit!r:.80}.")


def _require_flat(residual: Tensor, count: int) -> None:
    good = residual.dtype == torch.float32 and residual.dim() == 1 and residual.is_contiguous()
    if not good or residual.numel() != count:
        raise StateMismatchError(
            f"two_bit: a residual of {residual.dtype} and shape {tuple(residual.shape)} cannot take a "
            f"gradient of {count} elements; expected float32[{count}]."
        )
