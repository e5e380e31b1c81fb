"""Functions whose gradient has one of two sizes, by where a value lies: one bit a value is all it asks for.

A value beyond the format's limit comes back as the limit.  So through a softshrink whose threshold lies
further out no gradient passed at all, and where a clamp cuts rare values off, theirs passed.  The bit is
exact, and smaller than any code.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import torch
from torch import Tensor

from dynaquant_core.arithmetic import plainly
from dynaquant_core.memory.smaq.entangled import named
from dynaquant_core.memory.smaq.packed_words import pack_bits, unpack_bits
from dynaquant_core.memory.smaq.statistics import Statistics

__all__ = ["GATES", "Gated", "Rule", "rule_of"]

#: Where the values of a map are open, as torch's backward passes tell it.
Rule = Callable[[Tensor], Tensor]


@dataclass(frozen=True, slots=True)
class Gated:
    """A map as one bit a value, and a value of either kind: to the backward pass all of a kind are alike.

    Args:
        bits: which are open, as `pack_bits` gives them.
        pair: a closed one and an open one.
        shape: of the map.
    """

    bits: Tensor
    pair: Tensor
    shape: torch.Size

    @classmethod
    @plainly
    def of(cls, values: Tensor, rule: Rule) -> Gated:
        """What is kept of a contiguous map.

        Example:
            >>> Gated.of(torch.tensor([0.5, 7.0, -2.0, 8.0]), lambda values: values > 5).decode().tolist()
            [0.5, 7.0, 0.5, 7.0]
        """
        flat = values.reshape(-1)
        flags = rule(flat).to(torch.uint8)
        either = torch.stack([flags.argmin(), flags.argmax()])  # nothing that a device waits for
        return cls(pack_bits(flags), flat.index_select(0, either), values.shape)

    @property
    def nbytes(self) -> int:
        """Bytes of bits and values."""
        return self.bits.nbytes + self.pair.nbytes

    @property
    def statistics(self) -> Statistics | None:
        """None: nothing is relative to any."""
        return None

    def decode(self) -> Tensor:
        """A map of the two values."""
        closed, opened = self.pair
        flags = unpack_bits(self.bits, self.shape.numel())
        return torch.where(flags, opened, closed).view(self.shape)


def rule_of(func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Rule | None:
    """What opens the map that a call of one of ``GATES`` was given.

    None: it is no such call, or its bounds are maps, against which backward sets the values themselves.

    Example:
        >>> rule_of(torch.clamp, (torch.ones(3),), {"max": 2.0})(torch.tensor([1.0, 2.0, 3.0])).tolist()
        [True, True, False]
    """
    given = {name: one for name, one in kwargs.items() if name not in ("input", "self")}
    if func not in GATES or any(isinstance(one, Tensor) for one in (*args[1:], *given.values())):
        return None
    rule, settings = GATES[func], args[1:]
    return lambda values: rule(values, *settings, **given)


def _clamp(values: Tensor, min: Any = None, max: Any = None, **_: Any) -> Tensor:  # noqa: A002 - torch's names
    if min is None or max is None:
        return values.le(max) if min is None else values.ge(min)
    return values.ge(min) & values.le(max)


def _clamp_max(values: Tensor, max: Any, **_: Any) -> Tensor:  # noqa: A002
    return values.le(max)


def _hardtanh(values: Tensor, min_val: float = -1.0, max_val: float = 1.0, *_: Any, **__: Any) -> Tensor:
    return _passed(torch.ops.aten.hardtanh_backward(_one(values), values, min_val, max_val))


def _relu6(values: Tensor, *_: Any, **__: Any) -> Tensor:
    return _hardtanh(values, 0.0, 6.0)


def _hardsigmoid(values: Tensor, *_: Any, **__: Any) -> Tensor:
    return _passed(torch.ops.aten.hardsigmoid_backward(_one(values), values))


def _leaky(values: Tensor, *_: Any, **__: Any) -> Tensor:
    return values.gt(0)


def _shrink(backward: Any, values: Tensor, lambd: float = 0.5, **_: Any) -> Tensor:
    return _passed(backward(_one(values), values, lambd))


def _threshold(values: Tensor, threshold: float, *_: Any, **__: Any) -> Tensor:
    return _passed(torch.ops.aten.threshold_backward(_one(values), values, threshold))


def _passed(gradient: Tensor) -> Tensor:
    return gradient.ne(0)


def _one(values: Tensor) -> Tensor:
    """A gradient of one for each value, in no memory."""
    return values.new_ones(()).expand_as(values)


RULES: Final[dict[Callable[..., Tensor], tuple[str, ...]]] = {
    _clamp: ("clamp", "clamp_", "clip", "clip_", "clamp_min", "clamp_min_"),
    _clamp_max: ("clamp_max", "clamp_max_"),
    _hardtanh: ("hardtanh", "hardtanh_"),
    _relu6: ("relu6",),
    _hardsigmoid: ("hardsigmoid",),
    _leaky: ("leaky_relu", "leaky_relu_"),
    partial(_shrink, torch.ops.aten.softshrink_backward): ("softshrink",),
    partial(_shrink, torch.ops.aten.hardshrink_backward): ("hardshrink",),
    _threshold: ("threshold", "threshold_"),
}

#: What opens a map, by the function that is called: the map as it was saved, then the call's other arguments.
GATES: Final = {func: rule for rule, names in RULES.items() for func in named(*names)}
