"""theta32 written into the model: what follows each step, in as few launches as there can be.

On a device a launch costs more than the bytes that it moves, so layers are zeroed and copied by many, and
pruned ones filled by one kernel where kernels can be compiled.  All of a pruned layer is zeroed each time:
what is written through ``.data``, or into a ``.data`` that replaces it, moves no version that could be looked
at.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from dynaquant_core import device_jit
from dynaquant_core.memory.samo import trial
from dynaquant_core.memory.samo.groups import RUN
from dynaquant_core.memory.samo.guard import require_same_layer
from dynaquant_core.memory.samo.places import fill, flat_view
from dynaquant_core.memory.samo.slots import Masters, Slot

__all__ = ["Expansion"]


class Expansion:
    """theta16 = theta32 at the places that are kept, zero elsewhere.

    Args:
        slots: of all trained parameters.
        masters: theta32 of those that have one of their own.
    """

    def __init__(self, slots: Iterable[Slot], masters: Iterable[Masters]) -> None:
        by_name = {slot.name: slot for slot in slots}
        self._whole: list[tuple[list[Tensor], list[Tensor]]] = []
        self._pruned: list[_Pruned] = []
        for memory in masters:
            held = [by_name[name] for name in memory.offsets]
            self._whole += _alike([slot for slot in held if slot.index is None])
            for dtype in dict.fromkeys(slot.param.dtype for slot in held if slot.index is not None):
                some = [slot for slot in held if slot.index is not None and slot.param.dtype == dtype]
                where = memory.flat.device
                kernels = device_jit.compiles(where) and trial.agrees(where)
                table = _Table(some, memory) if kernels else None
                self._pruned.append(_Pruned(some, memory, dtype, table))

    @torch.no_grad()
    def run(self) -> int:
        """Writes; gives back the bytes of the copies that this needed."""
        for parameters, masters in self._whole:
            torch._foreach_copy_(parameters, masters)
        return sum(pruned.write() for pruned in self._pruned)


@dataclass(frozen=True, slots=True)
class _Pruned:
    """Layers of one dtype on one device."""

    slots: list[Slot]
    memory: Masters
    dtype: torch.dtype
    table: _Table | None

    def write(self) -> int:
        if self.table is not None:
            self.table.follow()
            torch._foreach_zero_([slot.param for slot in self.slots])
            self.table.write(self.dtype)
            return 0
        for slot in self.slots:
            flat_view(slot.param)  # raises where a storage is shorter than its parameter
        flat = self.memory.flat
        half = flat.to(self.dtype)  # while there is no memory for it, nothing is zeroed
        torch._foreach_zero_([slot.param for slot in self.slots])
        for slot in self.slots:
            assert slot.index is not None
            offset = self.memory.offsets[slot.name]
            values = half[offset : offset + slot.kept]
            fill(values.to(slot.param.dtype), slot.index, flat_view(slot.param))
        return 0 if half is flat else half.untyped_storage().nbytes()


@dataclass(slots=True)
class _Table:
    """Where the layers lie, for a kernel that writes them all; made anew when one has moved."""

    slots: Sequence[Slot]
    memory: Masters
    at: list[int] = field(default_factory=list)
    layers: Tensor | None = None
    blocks: Tensor | None = None

    def follow(self) -> None:
        """Looks where the layers are.

        Raises:
            StateMismatchError: one was cast, or moved to another device.
            RuntimeError: one has lost its memory.
        """
        for slot in self.slots:
            require_same_layer(slot)
        at = [slot.param.data_ptr() for slot in self.slots]
        if at != self.at:
            for slot in self.slots:
                flat_view(slot.param)  # raises where a storage is shorter than its parameter
            device = self.memory.flat.device
            self.layers, self.blocks = (
                torch.from_numpy(one).to(device) for one in _rows(self.slots, self.memory.offsets)
            )
            self.at = at

    def write(self, dtype: torch.dtype) -> None:
        """Writes what is kept of every layer to its places."""
        from dynaquant_core.memory.samo.device_kernels import scatter

        assert self.layers is not None
        assert self.blocks is not None
        scatter(self.memory.flat, self.layers, self.blocks, dtype, RUN)


def _rows(slots: Sequence[Slot], offsets: Mapping[str, int]) -> tuple[np.ndarray, np.ndarray]:
    """What `device_kernels.scatter` reads: int64[n, 4] and int32[m, 2]."""
    layers = [
        (slot.param.data_ptr(), slot.index.data_ptr(), offsets[slot.name], slot.kept)
        for slot in slots
        if slot.index is not None
    ]
    runs = [-(-slot.kept // RUN) for slot in slots]
    numbers = np.concatenate([np.arange(count, dtype=np.int32) for count in runs])
    blocks = np.stack([np.repeat(np.arange(len(slots), dtype=np.int32), runs), numbers], axis=1)
    return np.array(layers, np.int64), blocks


def _alike(slots: Iterable[Slot]) -> list[tuple[list[Tensor], list[Tensor]]]:
    """Parameters and theta32 of layers without a mask, by what torch copies in one launch."""
    found: dict[tuple[torch.dtype, bool], tuple[list[Tensor], list[Tensor]]] = {}
    for slot in slots:
        straight = slot.param.stride() == slot.master.stride()
        parameters, masters = found.setdefault((slot.param.dtype, straight), ([], []))
        parameters.append(slot.param)
        masters.append(slot.master)
    return list(found.values())
