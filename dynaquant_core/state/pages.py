"""Room for large tensors, in huge pages where the system gives them on request.

The first touch of a page costs a call into the system, and pages are 4 KiB: a tensor of 200 MB asks 50,000
times, which can take as long as decoding it.  NumPy asks for pages of 2 MiB for its large arrays; this does
so for tensors.  Those that a user gets are torch's own and can be resized; our own copies lie in a room
together.
"""

from __future__ import annotations

import ctypes
import mmap
import weakref
from collections.abc import Callable, Mapping
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

#: Size of all other pages, at least.
SMALL: Final = mmap.PAGESIZE

_rooms: weakref.WeakSet[mmap.mmap] = weakref.WeakSet()


def _system_advise() -> Callable[[int, int, int], int] | None:
    """The system's `madvise`, where it knows huge pages."""
    if not hasattr(mmap, "MADV_HUGEPAGE"):
        return None
    advise = ctypes.CDLL(None).madvise
    advise.argtypes, advise.restype = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int], ctypes.c_int
    found: Callable[[int, int, int], int] = advise
    return found


_advise = _system_advise()


def empty_tensor(spec: TensorSpec, device: torch.device | str = "cpu") -> Tensor:
    """An uninitialised tensor of torch's own, contiguous; a large one in huge pages as far as they fit in.

    Args:
        spec: shape and dtype.
        device: where it lies.

    Example:
        >>> from dynaquant_core.state.spec import TensorSpec
        >>> storage = empty_tensor(TensorSpec((2048, 1024), "float32")).untyped_storage()
        >>> storage.nbytes(), storage.resizable()
        (8388608, True)
    """
    tensor = torch.empty(spec.shape, dtype=dtype_of(spec.dtype), device=device)
    if tensor.device.type == "cpu" and spec.nbytes >= LARGE and _advise is not None:
        # In whole small pages, as malloc maps them: mappings side by side that are all advised become one.
        start = tensor.data_ptr() // SMALL * SMALL
        _advise(start, -(-(tensor.data_ptr() + spec.nbytes - start) // SMALL) * SMALL, mmap.MADV_HUGEPAGE)
    return tensor


def _room(size: int) -> Tensor:
    """Uninitialised bytes in a mapping of their own, which begins with a huge page."""
    if size < LARGE or len(_rooms) >= MOST or not hasattr(mmap, "MADV_HUGEPAGE"):
        return torch.empty(size, dtype=torch.uint8, device="cpu")
    private = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS  # as malloc has it: a forked child gets a copy
    try:
        room = mmap.mmap(-1, size + PAGE, flags=private)
        offset = -ctypes.addressof(ctypes.c_char.from_buffer(room)) % PAGE
        room.madvise(mmap.MADV_HUGEPAGE, offset, size // PAGE * PAGE)
    except OSError:  # a system without such pages, or without so much room: torch says which
        return torch.empty(size, dtype=torch.uint8, device="cpu")
    _rooms.add(room)
    return torch.frombuffer(room, dtype=torch.uint8, count=size, offset=offset)


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
    room = _room(sum(rooms))
    found: dict[str, Tensor] = {}
    start = 0
    for (name, tensor), size in zip(tensors.items(), rooms, strict=True):
        flat = room.narrow(0, start, tensor.nbytes).view(tensor.dtype)
        found[name] = viewed_like(flat, tensor).copy_(tensor.detach())
        start += size
    return found
