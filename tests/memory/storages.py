"""Counts the bytes of memory behind tensors, live and at their peak, without asking what holds them."""

import weakref

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class Storages(TorchDispatchMode):
    """Everything allocated by torch operations inside the ``with`` block."""

    def __init__(self):
        super().__init__()
        self.live = self.peak = 0
        self._known = weakref.WeakSet()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        out = function(*args, **(kwargs or {}))
        for leaf in tree_leaves(out):
            if isinstance(leaf, torch.Tensor):
                self._saw(leaf.untyped_storage())
        return out

    def _saw(self, storage):
        if storage not in self._known:
            self._known.add(storage)
            self.live += storage.nbytes()
            self.peak = max(self.peak, self.live)
            weakref.finalize(storage, self._gone, storage.nbytes())

    def _gone(self, size):
        self.live -= size
