"""Tensors that are kept as words: bit for bit, or as bfloat16; what methods do where their own way ends.

A threshold is a promise: where nothing else keeps it, these do, at about 1.2 to 1 and 2 to 1.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor

from dynaquant_core.state.raw import copied, words_of
from dynaquant_core.state.spec import TensorSpec, dtype_of

__all__ = ["CODECS", "LARGEST_HALF", "Plain", "plain_of"]

#: What may code them, given the base's words where it holds the tensor in the same way.
CODECS = ("same", "constant", "planes", "planes_xor", "raw")

#: The largest float16 that is a bfloat16: 65504 itself would round to 65536.
LARGEST_HALF = 65280.0


@dataclass(frozen=True, slots=True)
class Plain:
    """A tensor kept in bfloat16 or bit for bit.

    Args:
        spec: shape and dtype of the tensor.
        bits: unsigned[n]; bfloat16 patterns (uint16), or the tensor's own bits.
        bf16: which of the two.
    """

    spec: TensorSpec
    bits: NDArray[Any]
    bf16: bool

    def tensor(self, device: torch.device | str = "cpu") -> Tensor:
        """Decodes the tensor."""
        stored = TensorSpec(self.spec.shape, "bfloat16" if self.bf16 else self.spec.dtype)
        return copied(self.bits, stored).to(device, dtype_of(self.spec.dtype))


def plain_of(tensor: Tensor, *, bf16: bool) -> Plain:
    """A tensor's words, copied; as bfloat16 no finite value becomes infinite, nor in the tensor's own dtype.

    Example:
        >>> plain_of(torch.tensor([1.003, -0.0]), bf16=True).tensor()
        tensor([1., -0.])
    """
    stored = _as_bfloat16(tensor.detach()) if bf16 else tensor
    return Plain(TensorSpec.of(tensor), words_of(stored).copy(), bf16)


def _as_bfloat16(tensor: Tensor) -> Tensor:
    """A finite tensor rounded; what would round beyond its own dtype or bfloat16 is the largest in both."""
    if tensor.dtype == torch.bfloat16:
        return tensor
    largest = LARGEST_HALF if tensor.dtype == torch.float16 else torch.finfo(torch.bfloat16).max
    return tensor.to(torch.bfloat16).clamp_(-largest, largest)
