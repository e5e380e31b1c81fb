"""Feature maps as packed bytes: what autograd keeps for the backward pass, packed while the model runs.

A tensor that several nodes save is packed once.  Left as they are: the model's parameters and buffers and the
batch that it was called with, which live anyway, and what `Coder.takes` does not take.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import Any
from weakref import WeakValueDictionary

import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef

from dynaquant_core.errors import GradientError
from dynaquant_core.memory.smaq.coder import Coder
from dynaquant_core.memory.smaq.format import Packed
from dynaquant_core.memory.smaq.memory_layout import View, flat_run

__all__ = ["Ledger", "SavedMaps"]

#: How far from 1 the sum of a row's probabilities may be, their logarithms being of half precision.
NEAR = 0.05

#: What every call of a module runs, its hooks and its forward inside.
CALL = nn.Module._call_impl.__code__


class Ledger:
    """Bytes of packed tensors that are alive.

    Attributes:
        live, peak: packed bytes now, and the most there were.
        live_raw, peak_raw: what they would take unpacked.
    """

    def __init__(self) -> None:
        self.live = self.peak = self.live_raw = self.peak_raw = 0

    def add(self, stored: int, raw: int) -> None:
        """Takes account of one more, or of one less."""
        self.live += stored
        self.live_raw += raw
        self.peak = max(self.peak, self.live)
        self.peak_raw = max(self.peak_raw, self.live_raw)


class Run:
    """A packed run of memory, alive as long as a node of the graph needs it."""

    def __init__(self, packed: Packed, raw: int, ledger: Ledger) -> None:
        self.packed, self._ledger = packed, ledger
        self._bytes = packed.nbytes, raw
        ledger.add(*self._bytes)

    def __del__(self) -> None:
        stored, raw = self._bytes
        self._ledger.add(-stored, -raw)


class SavedMaps:
    """Packs what is saved inside of `packing`, or while a model runs that `attach` was told of.

    Args:
        model: whose parameters and buffers are left alone.
        coder: how.
    """

    def __init__(self, model: nn.Module, coder: Coder) -> None:
        self.model, self.coder, self.ledger = model, coder, Ledger()
        self._open = threading.local()  # saved-tensor hooks are a thread's own

    def attach(self) -> list[Any]:
        """Packs in every training forward of the model from now on; returns the hooks' handles."""
        # A compiled model runs them between its graphs.
        enter = torch.compiler.disable(self._enter)  # type: ignore[no-untyped-call]
        leave = torch.compiler.disable(self._exit)  # type: ignore[no-untyped-call]
        return [
            self.model.register_forward_pre_hook(enter, with_kwargs=True, prepend=True),
            self.model.register_forward_hook(leave, always_call=True),
            self,
        ]

    @contextmanager
    def packing(self, batch: Any = None) -> Iterator[None]:
        """Packs what autograd saves inside; ``batch``: a tree of tensors that are left alone."""
        with _Forward(self, batch).hooks():
            yield

    def _enter(self, model: nn.Module, args: Any, kwargs: Any) -> None:
        wanted = is_own(model, self.model) and model.training and torch.is_grad_enabled()
        self._drop_broken_off()
        hooks: AbstractContextManager[Any] | None = _Forward(self, (args, kwargs)).hooks() if wanted else None
        if hooks is not None:
            hooks.__enter__()
        self._stack().append((hooks, _call()))

    def _exit(self, *_: Any) -> None:
        stack = self._stack()
        hooks, _call = stack.pop() if stack else (None, None)
        if hooks is not None:
            hooks.__exit__(None, None, None)

    def remove(self) -> None:
        """Ends what a forward pass that was broken off has left open on this thread."""
        self._drop_broken_off()

    def _drop_broken_off(self) -> None:
        """Closes forward passes that nothing runs any more.

        After an exception that is no `Exception`, such as Ctrl-C in a notebook, torch calls no forward hook:
        all that autograd saves from then on would be packed.  A pass that still runs is the outer one of a
        model that calls itself.
        """
        stack = self._stack()
        while stack and stack[-1][1] is not None and not _is_running(stack[-1][1]):
            self._exit()

    def _stack(self) -> list[Any]:
        if not hasattr(self._open, "stack"):
            self._open.stack = []
        stack: list[Any] = self._open.stack
        return stack


def _call() -> FrameType | None:
    """The call of the module whose hook asks; None: torch makes it in another way."""
    frame: FrameType | None = sys._getframe()
    while frame is not None and frame.f_code is not CALL:
        frame = frame.f_back
    return frame


def _is_running(call: FrameType) -> bool:
    frame: FrameType | None = sys._getframe()
    while frame is not None and frame is not call:
        frame = frame.f_back
    return frame is call


class _Forward:
    """One forward pass: what it has packed so far, and what it leaves alone."""

    def __init__(self, owner: SavedMaps, batch: Any) -> None:
        self.coder, self.ledger = owner.coder, owner.ledger
        self.spared = {address(tensor) for tensor in owner.model.parameters()}
        self.spared |= {address(tensor) for tensor in owner.model.buffers()}
        self.spared |= {address(tensor) for tensor in tensors_of(batch)}
        self.known: WeakValueDictionary[Any, Run] = WeakValueDictionary()
        self.storages: dict[int, StorageWeakRef] = {}
        self.count = 0

    def hooks(self) -> AbstractContextManager[Any]:
        """What autograd is told."""
        return torch.autograd.graph.saved_tensors_hooks(self.pack, unpack)

    def pack(self, tensor: Tensor) -> Any:
        """A saved tensor as (run, view); where it is left alone as another view of its memory.

        Not as itself: an operation that saves its own output would hold it in a cycle through the graph that
        no collector sees, and a forward pass without a backward one (a batch that is skipped) would never be
        freed.
        """
        if not self.coder.takes(tensor) or type(tensor) not in (Tensor, nn.Parameter):
            return Kept.of(tensor)
        if address(tensor) in self.spared or is_log_probabilities(tensor):
            return Kept.of(tensor)
        with torch.no_grad():
            flat, view = flat_run(tensor)
        key = self._key(tensor, flat)
        run = self.known.get(key)
        if run is None:
            packed = self.coder.pack(flat, "saved", str(self.count))
            if packed is None:
                return Kept.of(tensor)
            self.count += 1
            run = self.known[key] = Run(packed, flat.nbytes, self.ledger)
        return run, view

    def _key(self, tensor: Tensor, flat: Tensor) -> Any:
        """What two tensors share if one packing serves both.

        A storage is known by its record.  The weak reference keeps the record, not the memory, until the
        forward pass is over; so another storage at the same address is another one.  The version changes
        when a tensor is written to.
        """
        storage = tensor.untyped_storage()
        reference = StorageWeakRef(storage)  # type: ignore[no-untyped-call]
        self.storages.setdefault(reference.cdata, reference)
        if flat.untyped_storage().data_ptr() == storage.data_ptr():
            where: tuple[Any, ...] = (flat.storage_offset(), flat.numel())
        else:
            where = (tuple(tensor.shape), tensor.stride(), tensor.storage_offset())
        return reference.cdata, tensor.dtype, tensor._version, where


@dataclass(frozen=True, slots=True)
class Kept:
    """A saved tensor that is left alone.

    Args:
        tensor: another view of its memory.
        version: of that memory when it was saved; autograd compares none where there are hooks.
    """

    tensor: Tensor
    version: int

    @classmethod
    def of(cls, tensor: Tensor) -> Kept:
        """What is kept of a tensor, outside of the graph."""
        return cls(tensor.detach(), tensor._version)

    def read(self) -> Tensor:
        """The tensor.

        Raises:
            GradientError: it was written to since, so that gradients would be those of other values.
        """
        if self.tensor._version != self.version:
            raise GradientError(
                f"SmaQ: a tensor of shape {tuple(self.tensor.shape)} that backward needs was written to in "
                f"place after it was saved (version {self.tensor._version}, expected {self.version}), as a "
                f"weight by a step or a batch; write to it after backward, or to a clone."
            )
        return self.tensor


def unpack(kept: Any) -> Tensor:
    """Undoes `_Forward.pack`."""
    if isinstance(kept, Kept):
        return kept.read()
    run, view = kept
    assert isinstance(run, Run)
    assert isinstance(view, View)
    with torch.no_grad():
        return view.of(run.packed.decode())


def is_own(module: nn.Module, own: nn.Module) -> bool:
    """Whether a module that a hook is called for is the one that it was put on, or its part in DataParallel.

    A deep copy (a moving average, a teacher) brings the hooks along and is nobody's to code.
    """
    return module is own or getattr(module, "_is_replica", False)


def is_log_probabilities(tensor: Tensor) -> bool:
    """Whether a tensor is what a cross-entropy inside of the model saves, by its first column or row.

    Its backward takes exp(value) - 1 at the labels: a value near zero that is clamped to two deviations from
    the mean gives confident predictions the gradient of wrong ones, and training goes astray.

    Example:
        >>> logits = torch.tensor([[0.0, 9.0], [-9.0, 1.0]])
        >>> is_log_probabilities(logits.log_softmax(1)), is_log_probabilities(logits)
        (True, False)
    """
    for dimension in {min(1, tensor.dim() - 1), tensor.dim() - 1}:
        one = tensor.detach()[tuple(slice(None) if at == dimension else 0 for at in range(tensor.dim()))]
        high, total = torch.stack([one.max().float(), one.float().exp().sum()]).tolist()
        if one.numel() > 1 and high <= 0 and abs(total - 1) < NEAR:
            return True
    return False


def address(tensor: Tensor) -> int:
    """Where a tensor's memory begins; 0 where it has none."""
    return tensor.untyped_storage().data_ptr() if tensor.layout == torch.strided else 0


def tensors_of(tree: Any) -> Iterator[Tensor]:
    """The tensors of nested tuples, lists and mappings."""
    if isinstance(tree, Tensor):
        yield tree
    elif isinstance(tree, Mapping):
        for item in tree.values():
            yield from tensors_of(item)
    elif isinstance(tree, (tuple, list)):
        for item in tree:
            yield from tensors_of(item)
