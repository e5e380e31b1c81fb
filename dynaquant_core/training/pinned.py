"""Gradients on their way from a CUDA device to the CPU, beside the training step."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor

__all__ = ["PinnedCopies", "local_shard"]


@dataclass(slots=True)
class _Landing:
    """One device's side stream, and the event after its last copy."""

    stream: torch.cuda.Stream
    done: torch.cuda.Event = field(default_factory=torch.cuda.Event)


class PinnedCopies:
    """Copies tensors of one optimizer step into pinned buffers on a side stream.

    The side stream waits for the kernels queued so far (the step), and each tensor's memory is kept from
    reuse until its copy has ended (`record_stream`), so a gradient that is freed after the step is safe.  A
    gradient that the training loop keeps and overwrites in place (``zero_grad(set_to_none=False)``) is safe
    because the training stream then waits for the copy; `_kept` tells the two apart.
    """

    def __init__(self) -> None:
        self._landings: dict[torch.device, _Landing] = {}
        self._buffers: dict[str, Tensor] = {}
        self._sent: list[str] = []
        self._last: dict[torch.device, weakref.ref[Tensor]] = {}

    def send(self, tensors: Iterable[tuple[str, Tensor]]) -> None:
        """Starts copying; `receive` must have been called for the step before.

        Args:
            tensors: (key, strided CUDA tensor, or DTensor whose local shard is meant).
        """
        by_device: dict[torch.device, list[tuple[str, Tensor]]] = {}
        for key, tensor in tensors:
            by_device.setdefault(tensor.device, []).append((key, tensor))
        for device, group in by_device.items():
            self._send_from(device, group)

    def receive(self) -> Iterator[tuple[str, Tensor]]:
        """Waits for the copies and yields (key, pinned CPU buffer), good until the next `send`."""
        for landing in self._landings.values():
            landing.done.synchronize()
        sent, self._sent = self._sent, []
        for key in sent:
            yield key, self._buffers[key]

    def _send_from(self, device: torch.device, group: list[tuple[str, Tensor]]) -> None:
        if device not in self._landings:
            self._landings[device] = _Landing(torch.cuda.Stream(device))  # type: ignore[no-untyped-call]
        landing = self._landings[device]
        training = torch.cuda.current_stream(device)
        landing.stream.wait_stream(training)
        with torch.cuda.stream(landing.stream):
            for key, tensor in group:
                local = local_shard(tensor).detach()
                self._buffer(key, local).copy_(local, non_blocking=True)
                local.record_stream(landing.stream)
                self._sent.append(key)
            landing.done.record(landing.stream)
        if self._kept(device, group[0][1]):
            training.wait_event(landing.done)

    def _buffer(self, key: str, tensor: Tensor) -> Tensor:
        known = self._buffers.get(key)
        if known is None or known.shape != tensor.shape or known.dtype != tensor.dtype:
            self._buffers[key] = torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu", pin_memory=True)
        return self._buffers[key]

    def _kept(self, device: torch.device, tensor: Tensor) -> bool:
        """Whether the loop may overwrite this tensor in place.

        Unknown the first time, so yes; from then on if it is the same object as the step before.
        """
        before = self._last.get(device)
        self._last[device] = weakref.ref(tensor)
        return before is None or before() is tensor


def local_shard(tensor: Tensor) -> Tensor:
    """The part of a DTensor that this rank holds; any other tensor as it is."""
    if not hasattr(tensor, "to_local"):
        return tensor
    local: Tensor = tensor.to_local()
    return local
