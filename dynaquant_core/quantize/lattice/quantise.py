"""The dithered lattice: a weight as a whole number of steps, on a grid shifted by a known offset (ours).

``k = rint(w / step - u)`` is stored, ``(k + u) * step`` is decoded; u is the weight's offset (`offsets`).
Over the draws of u the error is uniform in half a step either way, whatever the weight.  So its mean is zero
given how the weight moved, and a restored run has lost none of its progress: what it gained is noise, which
training heals.  Values that are held to one side of zero (``ends`` of `dequantise`) are right on average
where they are half a step or more from it.

All arithmetic is float32, every operation rounded once; steps stay within 2^-100 and 2^100, so that neither
an overflow nor a processor's treatment of subnormal numbers can change a bit.  Symbols and values are thus
the same for any number of threads, on the CPU and on CUDA; tensors elsewhere pass through host memory.
"""

from __future__ import annotations

import math
from itertools import accumulate
from types import ModuleType

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dynaquant_core import device_jit
from dynaquant_core.errors import ConfigError, CorruptFileError, StateMismatchError
from dynaquant_core.quantize.flat import FLOATS, flatten
from dynaquant_core.quantize.lattice import cpu_path, torch_path
from dynaquant_core.quantize.lattice.offsets import as_key
from dynaquant_core.quantize.lattice.steps import is_unit
from dynaquant_core.threads import map_threads

__all__ = ["ESCAPE", "LARGEST", "MIDDLE", "dequantise", "quantise"]

#: A symbol is k + MIDDLE for |k| <= LARGEST; ESCAPE stands for any other k.
ESCAPE, MIDDLE, LARGEST = 0, 128, 127

#: Symbols that a thread decodes at a time.
PIECE = 1 << 20


def side(device: torch.device) -> ModuleType:
    """The implementation that serves a device."""
    if device.type != "cuda":
        return cpu_path
    if not device_jit.compiles(device):
        return torch_path
    from dynaquant_core.quantize.lattice import tried_path

    return tried_path


def home(device: torch.device) -> torch.device:
    """Where tensors of a device are worked on."""
    return device if device.type == "cuda" else torch.device("cpu")


def quantise(tensor: Tensor, step: float, key: int, out: NDArray[np.uint8]) -> NDArray[np.int32] | None:
    """Writes the symbol of every weight.

    Args:
        tensor: floating, of any shape and device; float64 is first rounded to float32.
        step: of `steps.round_step` or `steps.steps_of`; any number of `steps.is_unit`.
        key: of `offsets.offset_key`.
        out: uint8[n], written: k + 128 for -127 <= k <= 127, else 0, an escape.

    Returns:
        int32[m], k of the escaped weights in the order of their positions; None where a k does not fit
        (infinities and NaN among the weights, or a step that is far too small): then ``out`` holds nothing
        of use, and the tensor is to be stored exactly.

    Raises:
        ConfigError: no such step or key.
        StateMismatchError: ``out`` does not fit the tensor.
        UnsupportedStateError: the tensor is not floating.

    Example:
        >>> symbols = np.empty(3, dtype=np.uint8)
        >>> quantise(torch.tensor([0.0, 1.0, -1000.0]), 1.0, 5, symbols)
        array([-1000], dtype=int32)
        >>> symbols.tolist()
        [128, 129, 0]
    """
    flat = flatten(tensor).to(home(tensor.device))
    if not is_unit(step):
        raise ConfigError(f"lattice: {step!r} is no step of a lattice; make it with round_step.")
    if out.dtype != np.uint8 or out.shape != (flat.numel(),):
        raise StateMismatchError(
            f"lattice: expected room for {flat.numel()} symbols, uint8, got {out.dtype}{list(out.shape)}."
        )
    found: NDArray[np.int32] | None = side(flat.device).quantise(flat, np.float32(step), as_key(key), out)
    return found


def dequantise(
    codes: NDArray[np.uint8],
    escapes: NDArray[np.int32],
    step: float,
    key: int,
    out: Tensor,
    ends: tuple[float, float] = (-math.inf, math.inf),
) -> None:
    """Decodes symbols into a tensor, on its device and in its dtype.

    Before it is rounded to the dtype, nearest even, a value is within half a step of the weight, up to the
    rounding of float32.  What would be infinite in the dtype becomes its largest finite number: only weights
    within half a step of that can.

    Args:
        codes: uint8[n], symbols of `quantise`.
        escapes: int32[m], in order.
        step: as for `quantise`.
        key: as for `quantise`.
        out: any floating tensor of n elements.
        ends: a value below the first becomes the first, one above the second the second.

    Raises:
        CorruptFileError: no such step, or escapes that do not fit the symbols.  ``out`` is then untouched.
        ConfigError: no such key.
        StateMismatchError: ``out`` has another number of elements, or is not floating.

    Example:
        >>> symbols, out = np.empty(2, dtype=np.uint8), torch.empty(2)
        >>> weights = torch.tensor([0.25, -3.0])
        >>> escapes = quantise(weights, 0.125, 5, symbols)
        >>> dequantise(symbols, escapes, 0.125, 5, out)
        >>> bool(((out - weights).abs() <= 0.0625).all())
        True
    """
    if not is_unit(step):
        raise CorruptFileError(f"lattice: {step!r} is no step of a lattice, expected 2^-100 to 2^100.")
    if out.numel() != codes.size or out.dtype not in FLOATS:
        raise StateMismatchError(
            f"lattice: {codes.size} symbols cannot be decoded into a tensor of {out.dtype} and shape "
            f"{tuple(out.shape)}; expected as many floating elements."
        )
    pieces = pieces_of(codes, escapes)
    target, place = out.detach(), home(out.device)
    direct = target.is_contiguous() and target.device == place
    flat = (target if direct else torch.empty(target.shape, dtype=target.dtype, device=place)).view(-1)
    largest = min(torch.finfo(flat.dtype).max, torch.finfo(torch.float32).max)
    within = np.float32(max(ends[0], -largest)), np.float32(min(ends[1], largest))
    side(flat.device).dequantise(codes, escapes, np.float32(step), as_key(key), within, flat, pieces)
    if not direct:
        target.copy_(flat.view(target.shape))


def pieces_of(codes: NDArray[np.uint8], escapes: NDArray[np.int32]) -> list[tuple[slice, int]]:
    """Parts of the symbols for threads to decode, each with the number of escapes before it.

    Raises:
        CorruptFileError: symbols and escapes are not as many, or an escape is one that needs none.
    """
    parts = [slice(start, min(start + PIECE, codes.size)) for start in range(0, codes.size, PIECE)]
    zeros = map_threads(lambda part: codes[part].size - int(np.count_nonzero(codes[part])), parts)
    if sum(zeros) != escapes.size:
        raise CorruptFileError(f"lattice: {sum(zeros)} symbols are escapes, found {escapes.size} for them.")
    if ((escapes >= -LARGEST) & (escapes <= LARGEST)).any():
        raise CorruptFileError(f"lattice: an escape is within {LARGEST} of zero, where none is needed.")
    return list(zip(parts, accumulate(zeros, initial=0), strict=False))
