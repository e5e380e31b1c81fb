"""Which dense gradients of a backward pass wait for one kernel that compresses many of them.

Starting a kernel takes the host longer than a layer's gradient takes a CUDA device.  So where kernels can be
compiled a parameter's hook only keeps what autograd made, and the rest is done for many layers at once
(`groups`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from threading import get_ident
from typing import Final

import torch
from torch import Tensor

from dynaquant_core import device_jit
from dynaquant_core.memory.samo import trial
from dynaquant_core.memory.samo.groups import DTYPES, Device, Layer
from dynaquant_core.memory.samo.places import memory_order
from dynaquant_core.memory.samo.slots import Slot

__all__ = ["Gathering", "try_kernels"]

_STRIDED: Final = torch.strided


class Gathering:
    """Takes dense gradients from the model's parameters, and compresses them some at a time.

    On each device and stream it holds less than one layer's dense gradient, a sixteenth of all or 25 MiB,
    whichever of the last two is less and of the rest is more, besides the gradient that comes in.

    Args:
        slots: layers that the optimizer steps a copy of; those on devices without kernels are left alone.
        scale: what the loss was multiplied with.
        single: compresses one layer's dense gradient at once: where a kernel cannot add to what is held.
    """

    def __init__(self, slots: Iterable[Slot], scale: float, single: Callable[[Slot, Tensor], None]) -> None:
        by_device: dict[torch.device, list[Layer]] = {}
        for slot in slots:
            if _takes(slot):
                by_device.setdefault(slot.param.device, []).append(Layer(slot))
        self._devices = [Device(layers, scale, single) for layers in by_device.values()]
        self._layers = {layer.slot: layer for device in self._devices for layer in device.layers}

    def hold(self, slot: Slot) -> bool:
        """Takes a layer's dense gradient; False: it has to be compressed at once.

        Not held are what the kernel could not read (sparse, of another dtype, in another order of memory)
        and what nobody would ask for at the end (no graph task, compiled autograd, the capture of a graph).
        """
        layer = self._layers.get(slot)
        if layer is None:
            return False
        dense = slot.param.grad
        if (
            type(dense) is not Tensor
            or dense.layout is not _STRIDED
            or dense.dtype is not layer.dtype
            or dense.get_device() != layer.device.number
            or dense.shape != layer.shape
            or (dense.stride() != layer.strides and memory_order(dense) != slot.order)
            or dense.is_neg()  # its memory holds the opposite
            or not dense.data_ptr()  # zeros without memory
        ):
            return False
        group = layer.device.group()
        if group is None:
            return False
        slot.param.grad = None
        group.add(layer, dense)
        return True

    def flush(self) -> None:
        """Compresses what the backward pass that calls this has left, and those around it."""
        task = torch._C._current_graph_task_id()
        if task < 0:
            return  # at its end nothing was left; a group that is there is another thread's
        for device in self._devices:
            for group in device.living():
                if group.task == task or group.thread == get_ident():
                    group.flush()


def try_kernels(parameters: Iterable[Tensor]) -> None:
    """Tries the kernel on every device on which there is a parameter, once in a process.

    Raises what `device_jit.fault` raises: it is for the caller to ask before anything is changed.
    """
    for device in {parameter.device for parameter in parameters}:
        if device_jit.compiles(device):
            trial.agrees(device)


def _takes(slot: Slot) -> bool:
    """Whether the kernel can compress a layer's gradients: a mere copy of it has to run as memory runs."""
    return (
        not slot.own
        and slot.gradient is not None
        and slot.param.dtype in DTYPES
        and (slot.index is not None or memory_order(slot.master) == slot.order)
        and device_jit.compiles(slot.param.device)
        and trial.agrees(slot.param.device)
    )
