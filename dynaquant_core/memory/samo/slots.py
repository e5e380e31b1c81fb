"""What belongs to one trained parameter, and the flat memory behind all of them.

theta16 is the model's own parameter.  theta32 of all layers lies in one flat run a device, grad16 in a few
(the buckets of the all-reduce), and each layer has views of them; so the copy at expansion is one cast.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

import torch
from torch import Tensor, nn

from dynaquant_core.memory.samo.places import (
    compress,
    expand,
    fill,
    flat_view,
    index_of,
    like_memory,
    memory_order,
)

__all__ = ["BUCKET_BYTES", "Bucket", "Masters", "Slot", "buckets_of", "masters_of"]

#: Bytes of gradients that are reduced together; DDP's own default.
BUCKET_BYTES: Final = 25 << 20

#: Views begin at multiples of this many elements, so that wide loads stay aligned.
_ALIGN: Final = 8


@dataclass(slots=True, eq=False)
class Slot:
    """One trained parameter.

    Args:
        name: first name in the model.
        param: theta16, dense, in the model.
        index: int32[kept]; None: nothing of it is pruned.
        master: theta32, what the optimizer steps: float32[kept], or of the parameter's shape where nothing is
            pruned; the parameter itself where it needs no copy of its own (`own`).
        gradient: grad16, a view into a bucket, of the parameter's dtype and the master's shape; None where
            autograd's own gradient serves.
        order: of the parameter's memory, which the index counts in.
    """

    name: str
    param: nn.Parameter
    index: Tensor | None
    master: nn.Parameter
    gradient: Tensor | None = None
    order: tuple[tuple[int, ...], tuple[int, ...]] = field(init=False)

    def __post_init__(self) -> None:
        self.order = memory_order(self.param)

    @property
    def own(self) -> bool:
        """Whether the optimizer holds the model's parameter itself."""
        return self.master is self.param

    @property
    def kept(self) -> int:
        """How many of its weights are trained."""
        return self.master.numel()

    def gather(self, values: Tensor) -> Tensor:
        """What of a tensor of the parameter's shape is kept, in the master's shape and the tensor's dtype."""
        if self.index is None:
            return values.detach()
        flat = like_memory(values, self.param)
        return compress(flat, self.index, torch.empty(self.kept, dtype=flat.dtype, device=flat.device))

    def spread(self, values: Tensor, into: Tensor) -> None:
        """Writes values in the master's shape into a tensor that lies in memory as the parameter does."""
        if self.index is None:
            into.detach().copy_(values)
        else:
            expand(values.to(into.dtype), self.index, flat_view(into))

    def refill(self, into: Tensor) -> None:
        """Writes the master to its places in a tensor that lies in memory as the parameter does."""
        if self.index is None:
            into.detach().copy_(self.master.detach())
        else:
            fill(self.master.detach().to(into.dtype), self.index, flat_view(into))

    def take(self, gradient: Tensor) -> None:
        """grad16 = what is kept of a dense gradient."""
        assert self.gradient is not None
        if self.index is None:
            self.gradient.copy_(gradient)
        else:
            compress(like_memory(gradient, self.param), self.index, self.gradient)


@dataclass(slots=True, eq=False)
class Bucket:
    """Gradients that are reduced together.

    Args:
        slots: in the order in which backward is expected to make their gradients.
        buffer: grad16 of all of them; the last ``len(slots)`` elements say which of them have one.
    """

    slots: list[Slot]
    buffer: Tensor
    ready: set[str] = field(default_factory=set)

    @property
    def flags(self) -> Tensor:
        """One element a slot: above zero where any rank has a gradient."""
        return self.buffer[self.buffer.numel() - len(self.slots) :]


@dataclass(frozen=True, slots=True)
class Masters:
    """theta32 of one device.

    Args:
        flat: float32, all of it.
        offsets: where each parameter's begins, by its name.
    """

    flat: Tensor
    offsets: Mapping[str, int]


def masters_of(
    parameters: Mapping[str, nn.Parameter],
    masks: Mapping[str, Tensor],
    *,
    copies: bool,
    former: Mapping[str, nn.Parameter],
) -> tuple[list[Slot], list[Masters]]:
    """Slots in the order of the parameters, and the flat memory of their theta32, filled.

    Args:
        parameters: that are trained, dense, still in float32 or what they came in.
        masks: of those that are pruned.
        copies: whether the others get a theta32 apart (mixed precision), or stay as they are.
        former: masters of other masks, used again: whoever holds one holds what the optimizer steps.
    """
    indices = {name: index_of(mask, parameters[name]) for name, mask in masks.items()}
    devices: dict[torch.device, list[str]] = {}
    for name, parameter in parameters.items():
        if copies or name in masks:
            devices.setdefault(parameter.device, []).append(name)
    slots = {name: Slot(name, parameter, None, parameter) for name, parameter in parameters.items()}
    memory = []
    for device, names in devices.items():
        sizes = {name: (indices[name] if name in indices else parameters[name]).numel() for name in names}
        offsets, total = _laid_out(sizes)
        flat = torch.zeros(total, dtype=torch.float32, device=device)
        memory.append(Masters(flat, offsets))
        for name in names:
            view = flat[offsets[name] : offsets[name] + sizes[name]]
            slots[name] = _slot(name, parameters[name], indices.get(name), view, former.get(name))
    return list(slots.values()), memory


def _slot(
    name: str, parameter: nn.Parameter, index: Tensor | None, view: Tensor, master: nn.Parameter | None
) -> Slot:
    view = view if index is not None else view.view(parameter.shape)
    if master is None:
        master = nn.Parameter(view)
    else:
        master.grad, master.data = None, view
    slot = Slot(name, parameter, index, master)
    slot.master.data.copy_(slot.gather(parameter))
    return slot


def buckets_of(slots: Iterable[Slot], limit: int = BUCKET_BYTES) -> list[Bucket]:
    """Gives each slot its view of a bucket; one bucket holds one dtype on one device.

    Args:
        slots: in the model's order; backward makes the last one's gradient first.
        limit: bytes of a bucket, but at least one slot.
    """
    groups: dict[tuple[torch.dtype, torch.device], list[list[Slot]]] = {}
    for slot in reversed(list(slots)):
        open_ones = groups.setdefault((slot.param.dtype, slot.param.device), [[]])
        held = sum(one.kept for one in open_ones[-1]) * slot.param.element_size()
        if open_ones[-1] and held + slot.kept * slot.param.element_size() > limit:
            open_ones.append([])
        open_ones[-1].append(slot)
    return [
        _bucket(some, dtype, device) for (dtype, device), parts in groups.items() for some in parts if some
    ]


def _bucket(slots: list[Slot], dtype: torch.dtype, device: torch.device) -> Bucket:
    offsets, total = _laid_out({slot.name: slot.kept for slot in slots})
    buffer = torch.zeros(total + len(slots), dtype=dtype, device=device)
    for slot in slots:
        view = buffer[offsets[slot.name] : offsets[slot.name] + slot.kept]
        slot.gradient = view.view(slot.master.shape)
    return Bucket(slots, buffer)


def _laid_out(sizes: Mapping[str, int]) -> tuple[dict[str, int], int]:
    """Where each run begins, and the length of all."""
    offsets, total = {}, 0
    for name, size in sizes.items():
        offsets[name] = total
        total += -(-size // _ALIGN) * _ALIGN
    return offsets, total
