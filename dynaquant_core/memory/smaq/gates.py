"""Functions whose gradient has one of a few sizes, by where a value lies: all it asks for is a bit or two.

A value beyond the format's limit comes back as the limit.  So through a softshrink whose threshold lies
further out no gradient passed at all, and where a clamp cuts rare values off, theirs passed.  And what
is smaller than a level came back with either sign, of which an absolute value takes its gradient.  The bits
are exact, and smaller than any code.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import torch
from torch import Tensor

from dynaquant_core.arithmetic import plainly
from dynaquant_core.memory.smaq.entangled import ORDERED, named, order_of
from dynaquant_core.memory.smaq.packed_words import pack_run, unpack_run
from dynaquant_core.memory.smaq.statistics import Statistics

__all__ = ["GATES", "Gated", "Rule", "rule_of"]

#: Of which kind the values of a map are, as torch's backward passes tell it: open or not, or one of four.
Rule = Callable[[Tensor], Tensor]


@dataclass(frozen=True, slots=True)
class Gated:
    """A map as the kind of each value, and one of each kind: to the backward pass all of a kind are alike.

    Args:
        kinds: as `pack_run` gives them.
        width: bits of each.
        values: one of each kind.
        shape: of the map.
    """

    kinds: Tensor
    width: int
    values: Tensor
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
        found = rule(flat)
        width = 1 if found.dtype == torch.bool else 2
        kinds = found.to(torch.uint8)
        # The first of each kind, with nothing that a device waits for.
        one_of_each = torch.stack([kinds.eq(kind).to(torch.uint8).argmax() for kind in range(1 << width)])
        return cls(pack_run(kinds, width), width, flat.index_select(0, one_of_each), values.shape)

    @property
    def nbytes(self) -> int:
        """Bytes of kinds and values."""
        return self.kinds.nbytes + self.values.nbytes

    @property
    def statistics(self) -> Statistics | None:
        """None: nothing is relative to any."""
        return None

    def decode(self) -> Tensor:
        """A map of a few values."""
        first, *others = self.values
        kinds = unpack_run(self.kinds, self.width)[: self.shape.numel()]
        found: Tensor = first.expand(kinds.shape)
        for kind, value in enumerate(others, 1):
            found = torch.where(kinds == kind, value, found)
        return found.view(self.shape)


def rule_of(func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Rule | None:
    """What tells the kinds of the map apart that a call of one of ``GATES``, or a norm of order 1, was given.

    None: it is no such call, or its bounds are maps, against which backward sets the values themselves.

    Example:
        >>> rule_of(torch.clamp, (torch.ones(3),), {"max": 2.0})(torch.tensor([1.0, 2.0, 3.0])).tolist()
        [True, True, False]
    """
    if func in FIRST_NORMS and order_of(args, kwargs) == 1:
        return _sign
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


def _sign(values: Tensor, **_: Any) -> Tensor:
    return values.sign().add(1).to(torch.uint8)


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
    _sign: ("abs", "abs_", "absolute", "absolute_"),
    partial(_shrink, torch.ops.aten.softshrink_backward): ("softshrink",),
    partial(_shrink, torch.ops.aten.hardshrink_backward): ("hardshrink",),
    _threshold: ("threshold", "threshold_"),
}

#: Norms that are sums of absolute values where their order is 1.
FIRST_NORMS: Final = ORDERED - named("normalize", "matrix_norm")

#: What opens a map, by the function that is called: the map as it was saved, then the call's other arguments.
GATES: Final = {func: rule for rule, names in RULES.items() for func in named(*names)}
