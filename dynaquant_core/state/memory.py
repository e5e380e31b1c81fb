"""Where a tensor lies: two names for one tensor are told by its memory, whatever a wrapper calls them.

And whether it can be written there.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

import torch
from torch import Tensor
from torch.nn.parameter import is_lazy

__all__ = ["Address", "address_of", "overlapping", "read_only"]

#: Where Linux lists the parts of this process's memory, and what it says of one that cannot be written.
MAPS: Final = Path("/proc/self/maps")
FIXED: Final = re.compile(rb"^([0-9a-f]+)-([0-9a-f]+) .-", re.MULTILINE)

#: Device, and where a tensor's first value lies.
Address = tuple[str, int]


def address_of(value: object) -> Address | None:
    """Where a tensor begins; tensors that share a buffer begin at different places in it.

    Returns:
        None for what has no memory of its own to be known by: no tensor, an empty one, one of another layout,
        on no device, or a subclass that wraps others.

    Example:
        >>> buffer = torch.zeros(4)
        >>> parts = buffer[:2].view(1, 2), buffer[2:], buffer[4:]
        >>> [address_of(part) == address_of(buffer) for part in parts], address_of(parts[2]) is None
        ([True, False, False], True)
    """
    if not isinstance(value, Tensor) or is_lazy(value) or value.is_meta:
        return None
    if value.is_nested or value.layout != torch.strided or not value.numel():
        return None
    start = value.data_ptr()
    return (str(value.device), start) if start else None


def overlapping(tensors: Mapping[str, Tensor]) -> frozenset[str]:
    """Names of different tensors that share some memory, such as a weight and a slice of it.

    Neighbours in one buffer share none, nor do columns of one matrix that lie between each other.

    Example:
        >>> buffer = torch.zeros(4, 4)
        >>> sorted(overlapping({"whole": buffer[:3], "head": buffer[2], "last": buffer[3]}))
        ['head', 'whole']
        >>> sorted(overlapping({"left": buffer[:, :2], "right": buffer[:, 2:]}))
        []
    """
    return frozenset(name for heap in _heaps(tensors) for name in _shared(heap))


def read_only(tensors: Mapping[str, Tensor]) -> frozenset[str]:
    """Names of tensors of the CPU in memory that nobody may write, as that of a file mapped for reading.

    Who writes there ends the process; torch does not know.  So does Linux alone; elsewhere none is named.

    Example:
        >>> import mmap, warnings
        >>> with warnings.catch_warnings():
        ...     warnings.simplefilter("ignore")
        ...     table = torch.frombuffer(mmap.mmap(-1, 64, prot=mmap.PROT_READ), dtype=torch.float32)
        >>> sorted(read_only({"table": table, "weight": torch.ones(2)}))
        ['table']
    """
    placed = {
        name: tensor
        for name, tensor in tensors.items()
        if address_of(tensor) is not None and tensor.device.type == "cpu"
    }
    try:
        lines = FIXED.findall(MAPS.read_bytes()) if placed else []
    except OSError:
        return frozenset()
    starts, ends = ([int(line[side], 16) for line in lines] for side in (0, 1))  # they stand in order

    def is_fixed(tensor: Tensor) -> bool:
        last = tensor.data_ptr() + _extent(tensor) * tensor.itemsize - 1
        before = bisect_right(starts, last)
        return before > 0 and ends[before - 1] > tensor.data_ptr()

    return frozenset(name for name, tensor in placed.items() if is_fixed(tensor))


def _heaps(tensors: Mapping[str, Tensor]) -> Iterator[dict[str, Tensor]]:
    """Those between whose first and last values others begin, together with these."""
    placed = {name: tensor for name, tensor in tensors.items() if address_of(tensor) is not None}
    heap: dict[str, Tensor] = {}
    device, end = "", 0
    for name in sorted(placed, key=lambda name: (str(placed[name].device), placed[name].data_ptr())):
        tensor = placed[name]
        if str(tensor.device) != device or tensor.data_ptr() >= end:
            if len(heap) > 1:
                yield heap
            heap, device, end = {}, str(tensor.device), 0
        heap[name] = tensor
        end = max(end, tensor.data_ptr() + _extent(tensor) * tensor.itemsize)
    if len(heap) > 1:
        yield heap


def _shared(heap: Mapping[str, Tensor]) -> Iterator[str]:
    """Counts how many lie at each place; of several dtypes all are taken to."""
    first = min(tensor.data_ptr() for tensor in heap.values())
    size = next(iter(heap.values())).itemsize
    starts = {name: tensor.data_ptr() - first for name, tensor in heap.items()}
    if any(tensor.itemsize != size or starts[name] % size for name, tensor in heap.items()):
        yield from heap
        return
    length = max(starts[name] // size + _extent(tensor) for name, tensor in heap.items())
    counts = torch.zeros(length, dtype=torch.int16)  # on the host: a device's memory may be full
    places = {name: _places(counts, tensor, starts[name] // size) for name, tensor in heap.items()}
    for place in places.values():
        place.add_(1)
    yield from (name for name, place in places.items() if bool((place > 1).any()))


def _places(counts: Tensor, tensor: Tensor, start: int) -> Tensor:
    """A view of the places of a tensor, each once also where `Tensor.expand` repeats one."""
    sizes = [size if stride else 1 for size, stride in zip(tensor.shape, tensor.stride(), strict=True)]
    return counts.as_strided(sizes, tensor.stride(), start)


def _extent(tensor: Tensor) -> int:
    """Values from a tensor's first to its last, both included."""
    return 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
