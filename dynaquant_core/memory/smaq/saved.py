"""Feature maps as packed bytes: what autograd keeps for the backward pass, packed while the model runs."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from types import FrameType
from typing import Any

import torch
from torch import nn

from dynaquant_core.memory.smaq.coder import Coder
from dynaquant_core.memory.smaq.derivatives import Derivatives
from dynaquant_core.memory.smaq.held import Ledger
from dynaquant_core.memory.smaq.packing import Forward
from dynaquant_core.memory.smaq.places import CALL

__all__ = ["SavedMaps", "is_own"]


class SavedMaps:
    """Packs what is saved inside of `packing`, or while a model runs that `attach` was told of.

    Args:
        model: whose parameters and buffers are left alone.
        coder: how.
    """

    def __init__(self, model: nn.Module, coder: Coder) -> None:
        self.model, self.coder, self.ledger = model, coder, Ledger()
        self.derivatives = Derivatives()
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
        with self._forward(batch).open():
            yield

    def _forward(self, batch: Any, derivatives: Derivatives | None = None) -> Forward:
        return Forward(self.model, batch, self.coder, self.ledger, derivatives)

    def _enter(self, model: nn.Module, args: Any, kwargs: Any) -> None:
        wanted = is_own(model, self.model) and model.training and torch.is_grad_enabled()
        self._drop_broken_off()
        opened: ExitStack | None = None
        if wanted and not in_checkpoint():
            opened = self._forward((args, kwargs), self.derivatives).open()
        self._stack().append((opened, _call()))

    def _exit(self, *_: Any) -> None:
        stack = self._stack()
        opened, _call = stack.pop() if stack else (None, None)
        if opened is not None:
            opened.close()

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


def in_checkpoint() -> bool:
    """Whether activation checkpointing (not reentrant) takes what is saved: it will compute it again.

    Hooks inside of it would take it first, and it would be held packed after all.
    """
    ask = getattr(torch._C._autograd, "_top_saved_tensors_default_hooks", None)  # torch has no public way
    hooks = ask(True) if ask is not None else None
    return hooks is not None and getattr(hooks[0], "__module__", "") == "torch.utils.checkpoint"


def is_own(module: nn.Module, own: nn.Module) -> bool:
    """Whether a module that a hook is called for is the one that it was put on, or its part in DataParallel.

    A deep copy (a moving average, a teacher) brings the hooks along and is nobody's to code.
    """
    return module is own or getattr(module, "_is_replica", False)
