"""Whether several processes hold the same tensors, told by a few bytes of each."""

from __future__ import annotations

from collections.abc import Mapping

import xxhash
from torch import Tensor

from dynaquant_core.state.raw import words_of

__all__ = ["digest_of"]


def digest_of(tensors: Mapping[str, Tensor]) -> int:
    """63 bits that follow from names, dtypes, shapes and every bit of the values, on any device.

    Args:
        tensors: strided, in the same order in every process.

    Example:
        >>> import torch
        >>> zeros = torch.zeros(2, 3)
        >>> [digest_of({"w": zeros}) == digest_of({"w": other}) for other in (torch.zeros(3, 2).T, -zeros)]
        [True, False]
    """
    digest = xxhash.xxh3_64()
    for name, tensor in tensors.items():
        digest.update(repr((name, tensor.dtype, tuple(tensor.shape))).encode())
        digest.update(words_of(tensor).data)
    return digest.intdigest() >> 1
