"""Dense gradients of one backward pass on one stream, and how many of them are compressed at once.

A group is compressed when it has grown to its limit, and at the end of the backward pass.  Nobody but the
callback that a graph task runs at its end owns a group: where a backward pass breaks off, its group goes with
it, and no later pass can find it.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from threading import RLock, get_ident
from typing import Any, Final

import torch
from torch import Tensor
from torch.autograd import Variable

from dynaquant_core.memory.samo.slots import BUCKET_BYTES, Slot

__all__ = ["DTYPES", "RUN", "Device", "Group", "Layer"]

#: Of dense gradients that the kernel reads, in the order of its numbers.
DTYPES: Final = (torch.float16, torch.bfloat16, torch.float32)

#: Kept weights that one program of the kernel compresses.
RUN: Final = 2048

#: A group's limit is this part of all dense gradients, if no layer is larger.
_PART: Final = 16


class Layer:
    """What the kernel needs to know of a layer, worked out once.

    Attributes:
        memory: where its first gradient goes; None: into memory of its own.
        nbytes: of its dense gradient.
    """

    __slots__ = (
        "device",
        "dtype",
        "element",
        "index",
        "kept",
        "memory",
        "nbytes",
        "runs",
        "shape",
        "slot",
        "strides",
    )

    device: Device

    def __init__(self, slot: Slot) -> None:
        param = slot.param
        self.slot, self.dtype = slot, param.dtype
        self.shape, self.strides = param.shape, param.stride()
        self.element = DTYPES.index(param.dtype)
        self.index = 0 if slot.index is None else slot.index.data_ptr()
        self.memory = slot.gradient if param.dtype == torch.float32 else None
        self.kept, self.runs = slot.kept, -(-slot.kept // RUN)
        self.nbytes = param.numel() * param.element_size()


class Device:
    """The layers of one device, and the groups that live on it."""

    def __init__(self, layers: Sequence[Layer], scale: float, single: Callable[[Slot, Tensor], None]) -> None:
        self.layers, self.where = layers, layers[0].slot.param.device
        self.number = layers[0].slot.param.get_device()
        self.lock = RLock()  # hooks run on a thread of autograd's, the callback on the one that called
        sizes = [layer.nbytes for layer in layers]
        self.limit = max(*sizes, min(sum(sizes) // _PART, BUCKET_BYTES), 1)
        self._inverse, self._single = 1 / scale, single
        self._groups: list[weakref.ref[Group]] = []
        self._latest: Callable[[], Group | None] = _nobody
        self.stream: Callable[[int], int] = (
            torch._C._cuda_getCurrentRawStream if self.where.type == "cuda" else _no_stream
        )
        for layer in layers:
            layer.device = self

    def group(self) -> Group | None:
        """That of the graph task and the stream that are current; None: there can be none."""
        task, stream = torch._C._current_graph_task_id(), self.stream(self.number)
        found = self._latest()
        if found is not None and found.task == task and found.stream == stream:
            return found
        if task < 0 or _elsewhere(self.where):
            return None
        with self.lock:
            found = self._found(task, stream)
            self._latest = weakref.ref(found)
        return found

    def living(self) -> list[Group]:
        """Groups of graph tasks that have not ended."""
        with self.lock:
            found = [group for one in self._groups if (group := one()) is not None]
            self._groups = [weakref.ref(group) for group in found]
        return found

    def _found(self, task: int, stream: int) -> Group:
        for group in self.living():
            if group.task == task and group.stream == stream:
                return group
            if group.task != task and group.thread == get_ident():
                group.flush()  # this pass runs inside of that one, whose gradients came first
        group = Group(self, task, stream)
        self._groups.append(weakref.ref(group))
        Variable._execution_engine.queue_callback(group.flush)
        return group

    def compress(self, held: Iterable[tuple[Layer, Tensor]]) -> None:
        """Makes grad32 of dense gradients, or adds to it, on the stream that is current."""
        rows: list[int] = []
        made: list[tuple[Slot, Tensor]] = []
        programs = 0
        for layer, dense in held:
            slot = layer.slot
            master, before = slot.master, slot.master.grad
            if before is None:
                out = torch.empty_like(master) if layer.memory is None else layer.memory
                made.append((slot, out))
            elif _like(before, master):
                out = before
            else:
                self._single(slot, dense)
                continue
            rows += (
                dense.data_ptr(),
                layer.element,
                layer.index,
                out.data_ptr(),
                before is not None,
                layer.kept,
                programs,
            )
            programs += layer.runs
        if programs:
            from dynaquant_core.memory.samo.device_kernels import COLUMNS, gather

            pinned = self.where.type == "cuda"  # then sending it waits for nothing
            table = torch.tensor(rows, dtype=torch.int64, device="cpu", pin_memory=pinned).view(-1, COLUMNS)
            gather(table.to(self.where, non_blocking=True), programs, self._inverse, RUN)
        for slot, out in made:
            slot.master.grad = out


class Group:
    """Dense gradients of one backward pass that were made on one stream, in the order in which they came."""

    __slots__ = (
        "__weakref__",
        "_device",
        "_held",
        "_limit",
        "_lock",
        "_nbytes",
        "_stream",
        "stream",
        "task",
        "thread",
    )

    def __init__(self, device: Device, task: int, stream: int) -> None:
        self.task, self.stream, self.thread = task, stream, get_ident()
        self._device, self._lock, self._limit = device, device.lock, device.limit
        self._stream: Any = torch.cuda.current_stream(device.where) if device.where.type == "cuda" else None
        self._held: dict[Layer, Tensor] = {}
        self._nbytes = 0

    def add(self, layer: Layer, dense: Tensor) -> None:
        """Holds one more, or all are compressed."""
        with self._lock:
            if layer in self._held:
                self.flush()
            self._held[layer] = dense
            self._nbytes += dense.untyped_storage().nbytes()  # of a view all that it keeps
            if self._nbytes >= self._limit:
                self.flush()

    @torch.no_grad()
    def flush(self) -> None:
        """Compresses what is held; where that fails it is gone, as what backward makes after an error is."""
        device = self._device
        with device.lock:
            held, self._held, self._nbytes = self._held, {}, 0
            if not held:
                return
            # Where the gradients were made: nothing there waits, and their memory is not used again too soon.
            here = self._stream is None or device.stream(device.number) == self.stream
            with nullcontext() if here else torch.cuda.stream(self._stream):
                device.compress(held.items())
            if not here:
                torch.cuda.current_stream(device.where).wait_stream(self._stream)


def _like(gradient: Tensor, master: Tensor) -> bool:
    """Whether a kernel can add to a gradient; one that somebody else wrote may be anything."""
    return (
        type(gradient) is Tensor
        and gradient.layout == torch.strided
        and gradient.dtype == torch.float32
        and gradient.device == master.device
        and gradient.stride() == master.stride()
        and not gradient.is_neg()
        and bool(gradient.data_ptr() or not gradient.numel())
    )


def _elsewhere(device: torch.device) -> bool:
    """Whether what runs now is recorded, to run later or again: without the callback, at other addresses."""
    from torch._dynamo import compiled_autograd

    return (
        torch.compiler.is_compiling()
        or compiled_autograd.in_compiled_autograd_region
        or (device.type == "cuda" and torch.cuda.is_current_stream_capturing())
    )


def _nobody() -> None:
    return None


def _no_stream(_: int) -> int:
    return 0
