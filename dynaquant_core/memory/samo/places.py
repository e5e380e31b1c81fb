"""A parameter's memory as one flat run, and the places of it that are not pruned.

A flat view is in the order of memory, so that writing through it writes into the parameter whatever its
strides are (channels last, a transposed matrix); ``reshape`` would give a copy, and what is written into a
copy
is lost.  One int32 index a layer, shared by all that is compressed (arXiv 2302.05045, sec. 3).
"""

from __future__ import annotations

from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dynaquant_core.memory.samo.kernels import scatter
from dynaquant_core.threads import map_threads, slices

__all__ = [
    "MOST",
    "bits_of",
    "compress",
    "expand",
    "fill",
    "flat_view",
    "index_of",
    "is_whole",
    "like_memory",
    "mask_of",
    "memory_order",
]

#: Elements that an int32 index can number.
MOST: Final = 2**31 - 1

#: Below this many values a second thread costs more than it saves.
_SLICE: Final = 1 << 17

#: Places that are made int64 at a time where torch copies by index: 32 MiB.
_CHUNK: Final = 1 << 22

_WORDS: Final = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def is_whole(tensor: Tensor) -> bool:
    """Whether the tensor's elements fill one run of memory, each at a place of its own.

    Example:
        >>> is_whole(torch.zeros(4, 6).t()), is_whole(torch.zeros(4, 6)[:, :3])
        (True, False)
        >>> is_whole(torch.zeros(1).expand(3))
        False
    """
    expected = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size > 1:
            if stride != expected:
                return False
            expected *= size
    return True


def memory_order(tensor: Tensor) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """(shape, strides of the dimensions of more than one element): the same where a flat view is the same.

    Example:
        >>> memory_order(torch.zeros(4, 1, 6)) == memory_order(torch.zeros(4, 6, 1).transpose(1, 2))
        True
    """
    strides = zip(tensor.shape, tensor.stride(), strict=True)
    return tuple(tensor.shape), tuple(stride for size, stride in strides if size > 1)


def flat_view(tensor: Tensor) -> Tensor:
    """All elements in the order of memory, [n], outside autograd: the tensor's own memory, never a copy.

    Args:
        tensor: `is_whole`.

    Example:
        >>> weight = torch.zeros(2, 3).t()
        >>> flat_view(weight)[1] = 5.0
        >>> weight.tolist()
        [[0.0, 0.0], [5.0, 0.0], [0.0, 0.0]]
    """
    return tensor.detach().as_strided((tensor.numel(),), (1,))


def like_memory(values: Tensor, like: Tensor) -> Tensor:
    """``values`` flat in the order of ``like``'s memory; a copy only where the strides differ.

    Args:
        values: of the shape of ``like``.
        like: `is_whole`.
    """
    if values.stride() == like.stride():
        return flat_view(values)
    own = torch.empty_strided(like.shape, like.stride(), dtype=values.dtype, device=values.device)
    return flat_view(own.copy_(values.detach()))


def index_of(mask: Tensor, parameter: Tensor) -> Tensor:
    """int32[kept]: ascending places of a mask's True in the parameter's memory, on its device."""
    return like_memory(mask.to(parameter.device), parameter).nonzero().view(-1).to(torch.int32)


def mask_of(index: Tensor, parameter: Tensor) -> Tensor:
    """Undoes `index_of`: bool, of the parameter's shape and strides."""
    mask = torch.empty_strided(
        parameter.shape, parameter.stride(), dtype=torch.bool, device=parameter.device
    ).zero_()
    flat_view(mask)[index.long()] = True
    return mask


def bits_of(index: Tensor, size: int) -> Tensor:
    """uint8[ceil(size / 8)] on the CPU: a bit an element in the order of memory, the first one highest."""
    marks: NDArray[np.uint8] = np.zeros(size, np.uint8)
    marks[index.cpu().numpy()] = 1
    return torch.from_numpy(np.packbits(marks))


def compress(flat: Tensor, index: Tensor, out: Tensor) -> Tensor:
    """out[i] = flat[index[i]]: [n], int32[kept] -> [kept] of the same dtype."""
    return torch.index_select(flat, 0, index, out=out)


def expand(values: Tensor, index: Tensor, flat: Tensor) -> None:
    """Flat = 0 and flat[index[i]] = values[i], bit for bit: [kept], int32[kept] -> [n] of the same dtype.

    Example:
        >>> flat = torch.ones(4)
        >>> expand(torch.tensor([7.0, 8.0]), torch.tensor([0, 2], dtype=torch.int32), flat)
        >>> flat.tolist()
        [7.0, 0.0, 8.0, 0.0]
    """
    flat.zero_()
    fill(values, index, flat)


def fill(values: Tensor, index: Tensor, flat: Tensor) -> None:
    """flat[index[i]] = values[i], bit for bit; all else stays."""
    word = _WORDS[values.element_size()]
    source, target = values.view(word), flat.view(word)
    if flat.device.type != "cpu":
        scatter_by_torch(target, index, source)
        return
    arrays = target.numpy(), index.numpy(), source.numpy()
    if index.numel() <= _SLICE:
        scatter(*arrays)
        return
    map_threads(
        lambda part: scatter(arrays[0], arrays[1][part], arrays[2][part]),
        slices(index.numel(), minimum=_SLICE),
    )


def scatter_by_torch(target: Tensor, index: Tensor, source: Tensor) -> None:
    """target[index[i]] = source[i], on any device."""
    if index.numel() <= _CHUNK:
        target.index_copy_(0, index.long(), source)
        return
    for at in range(0, index.numel(), _CHUNK):
        some = slice(at, at + _CHUNK)
        target.index_copy_(0, index[some].long(), source[some])
