"""A context in which a module's Python attributes may change and nothing of that is left behind.

A `validation_step` appends its outputs to a list of the module, counts, and updates metrics.  When a search
calls it between two steps of training, the framework's own validation must not find any of that.
"""

from __future__ import annotations

from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Iterator
from contextlib import contextmanager
from copy import copy, deepcopy
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from dynaquant_core.plugins.generators import GENERATORS

__all__ = ["set_aside"]

#: What `nn.Module` itself keeps; parameters, buffers, submodules and flags are put back by others.
OWN = frozenset(vars(nn.Module()))

LISTS = (list, deque)
MAPPINGS = (dict, OrderedDict, defaultdict, Counter)

#: Larger tensors and arrays (a data set held in memory) are not copied; nobody adds to them in place.
LARGEST = 64 << 20


@contextmanager
def set_aside(root: nn.Module) -> Iterator[None]:
    """Gives the module and its submodules copies of their attributes, and the originals back at the end.

    Copied are lists, dictionaries, sets, deques, tensors, arrays and random generators, nested as they are,
    in tuples too, and with what they share; everything else is looked at by reference.  Modules that lie in
    such containers are looked after too.

    Args:
        root: whose attributes, and whose submodules' attributes, may be changed by the body.

    Example:
        >>> import torch
        >>> module = nn.Linear(1, 1)
        >>> module.outputs, module.total = [], torch.zeros(1)
        >>> with set_aside(module):
        ...     module.outputs.append("one")
        ...     module.total += 1
        ...     module.count = 3
        >>> module.outputs, module.total, hasattr(module, "count")
        ([], tensor([0.]), False)
    """
    copies = _Copies()
    held = copies.modules(root)
    try:
        yield
    finally:
        for module, attributes in held.items():
            own = vars(module)
            for name in [name for name in own if name not in OWN and name not in attributes]:
                del own[name]
            own.update(attributes)


class _Copies:
    """Copies made so far by the identity of what they are copies of, so that what is shared stays shared."""

    def __init__(self) -> None:
        self._made: dict[int, Any] = {}
        self._found: list[nn.Module] = []

    def modules(self, root: nn.Module) -> dict[nn.Module, dict[str, Any]]:
        """Puts copies into every module; returns what was there before."""
        before: dict[nn.Module, dict[str, Any]] = {}
        self._found = [root]
        while self._found:
            for module in self._found.pop().modules():
                if module not in before:
                    before[module] = {name: value for name, value in vars(module).items() if name not in OWN}
                    copies = {name: self._copy(value) for name, value in before[module].items()}
                    vars(module).update(copies)
        return before

    def _copy(self, value: Any) -> Any:
        if id(value) in self._made:
            return self._made[id(value)]
        kind = type(value)
        if kind in LISTS or kind in MAPPINGS:
            return self._members(value, range(len(value)) if kind in LISTS else list(value))
        if kind is tuple or _is_named_tuple(kind):
            return self._tuple(value)
        if kind is set:
            return self._keep(value, copy(value))
        if kind in GENERATORS:
            return self._keep(value, deepcopy(value))
        if kind is torch.Generator:
            return self._keep(value, torch.Generator(value.device).set_state(value.get_state()))
        if kind is Tensor and not value.requires_grad and value.nbytes <= LARGEST:
            return self._keep(value, value.detach().clone())
        if kind is np.ndarray and value.nbytes <= LARGEST:
            return self._keep(value, value.copy())
        if isinstance(value, nn.Module):
            self._found.append(value)
        return value

    def _members(self, container: Any, keys: Any) -> Any:
        fresh = self._keep(container, copy(container))
        for key in keys:
            fresh[key] = self._copy(container[key])
        return fresh

    def _tuple(self, value: Any) -> Any:
        """A tuple of copies; the same one where nothing in it is copied."""
        self._keep(value, value)  # it may lie in what it holds
        members = [self._copy(member) for member in value]
        if all(copied is member for copied, member in zip(members, value, strict=True)):
            return value
        kind = type(value)
        return self._keep(value, tuple(members) if kind is tuple else kind._make(members))

    def _keep(self, value: Any, fresh: Any) -> Any:
        self._made[id(value)] = fresh
        return fresh


def _is_named_tuple(kind: type) -> bool:
    return issubclass(kind, tuple) and hasattr(kind, "_fields") and hasattr(kind, "_make")
