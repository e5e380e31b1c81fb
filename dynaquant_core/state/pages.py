"""Room for large tensors, in huge pages where the system gives them on request.

The first touch of a page costs a call into the system, and pages are 4 KiB: a tensor of 200 MB asks 50,000
times, which can take as long as decoding it.  NumPy asks for pages of 2 MiB for its large arrays; this does
so for tensors, and begins them where such a page begins.
"""

from __future__ import annotations

import ctypes
import mmap
import weakref
from collections.abc import Mapping
from typing import Final

import torch
from torch import Tensor

from dynaquant_core.state.spec import TensorSpec, dtype_of
from dynaquant_core.state.strides import viewed_like

__all__ = ["LARGE", "copied_together", "empty_tensor"]

#: Size of a huge page on the processors we know; elsewhere the request is without effect, and without harm.
PAGE: Final = 1 << 21
#: Smaller tensors have few pages to gain.
LARGE: Final = 2 * PAGE
#: Where a copy begins in a room of many: a cache line, at which every dtype may begin.
LINE: Final = 64
#: A process may have some 65,000 mappings, and a room is up to three; what is more is left to malloc.
MOST: Final = 8192

_rooms: weakref.WeakSet[mmap.mmap] = weakref.WeakSet()


def empty_tensor(spec: TensorSpec, device: torch.device | str = "cpu") -> Tensor:
    """An uninitialised tensor, contiguous; what lies behind its last whole huge page is in small ones.

    Args:
        spec: shape and dtype.
        device: where it lies; anywhere but in host memory it is torch's own.

    Example:
        >>> from dynaquant_core.state.spec import TensorSpec
        >>> tensor = empty_tensor(TensorSpec((2048, 1024), "float32"))
        >>> tuple(tensor.shape), tensor.untyped_storage().nbytes() == tensor.nbytes
        ((2048, 1024), True)
    """
    dtype, on = dtype_of(spec.dtype), torch.device(device)
    large = spec.nbytes >= LARGE and len(_rooms) < MOST
    if on.type != "cpu" or not large or not hasattr(mmap, "MADV_HUGEPAGE"):
        return torch.empty(spec.shape, dtype=dtype, device=on)
    private = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS  # as malloc has it: a forked child gets a copy
    try:
        room = mmap.mmap(-1, spec.nbytes + PAGE, flags=private)
        offset = -ctypes.addressof(ctypes.c_char.from_buffer(room)) % PAGE
        room.madvise(mmap.MADV_HUGEPAGE, offset, spec.nbytes // PAGE * PAGE)
    except OSError:  # a system without such pages, or without so much room: torch says which
        return torch.empty(spec.shape, dtype=dtype, device=on)
    _rooms.add(room)
    return torch.frombuffer(room, dtype=dtype, count=spec.numel, offset=offset).reshape(spec.shape)


def copied_together(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Copies on the CPU that lie in one room together, each in the memory order of its original.

    The room goes back to the system when the last of them is gone.  What malloc gave for each alone stays
    with the process, for the thread that asked: a second copy would add to the peak of another thread.

    Args:
        tensors: by name, any dtype and device, strided.

    Example:
        >>> weight = torch.arange(6.0).reshape(2, 3).t()
        >>> copy = copied_together({"weight": weight})["weight"]
        >>> torch.equal(copy, weight), copy.stride()
        (True, (1, 3))
    """
    rooms = [-(-tensor.nbytes // LINE) * LINE for tensor in tensors.values()]
    room = empty_tensor(TensorSpec((sum(rooms),), "uint8"))
    found: dict[str, Tensor] = {}
    start = 0
    for (name, tensor), size in zip(tensors.items(), rooms, strict=True):
        flat = room.narrow(0, start, tensor.nbytes).view(tensor.dtype)
        found[name] = viewed_like(flat, tensor).copy_(tensor.detach())
        start += size
    return found
