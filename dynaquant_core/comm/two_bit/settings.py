"""What two-bit compression is told: thresholds, by tensor where wanted, mean or sum, and the warm-up."""

from __future__ import annotations

import json
import math
import numbers
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from difflib import get_close_matches
from typing import Literal, get_args

import numpy as np
from torch import Tensor

from dynaquant_core.config import FrozenSettings, require, require_choice
from dynaquant_core.errors import ConfigError
from dynaquant_core.state import matches

__all__ = ["Limits", "Reduce", "Threshold", "TwoBitSettings"]

Threshold = float | Mapping[str, float]
Reduce = Literal["mean", "sum"]

#: Thresholds of the two signs, both above 0: what a code stands for is +first, -second or nothing.
Limits = tuple[float, float]

OWNER = "two_bit"


@dataclass(frozen=True, slots=True)
class TwoBitSettings(FrozenSettings):
    """The parameters of two-bit compression, the same on every rank.

    Args:
        threshold: t, above 0, in the unit of the gradients: what is sent is +t, -t or nothing.  Or name
            pattern -> t, the first pattern that covers a parameter counting ("*" covers all that is left).
        negative_threshold: size of what is sent below zero, above 0; None: ``threshold``.  A number or, as
            ``threshold``, a mapping.
        reduce: "mean" over the ranks, as DDP does, or "sum".
        warmup: first synchronised steps that are reduced densely.

    Raises:
        ConfigError: a value is of the wrong type or out of range.

    Example:
        >>> TwoBitSettings(threshold={"*.bias": 0.01, "*": 0.5}).limits(["fc.weight", "fc.bias"])["fc.weight"]
        (0.5, 0.5)
        >>> TwoBitSettings(threshold=0)
        Traceback (most recent call last):
        ...
        dynaquant_core.errors.ConfigError: two_bit: threshold must be above 0 and within float32, got 0.
    """

    threshold: Threshold = 0.5
    negative_threshold: Threshold | None = None
    reduce: Reduce = "mean"
    warmup: int = 0

    def __post_init__(self) -> None:
        for name in ("threshold", "negative_threshold"):
            object.__setattr__(self, name, _checked(name, getattr(self, name)))
        require_choice(OWNER, "reduce", self.reduce, get_args(Reduce))
        whole = isinstance(self.warmup, int) and not isinstance(self.warmup, bool) and self.warmup >= 0
        require(whole, f"{OWNER}: warmup must be a number of steps, 0 or more, got {self.warmup!r}.")

    def limits(self, names: Iterable[str]) -> dict[str, Limits]:
        """The thresholds of each parameter.

        Args:
            names: of all parameters that are compressed.

        Raises:
            ConfigError: a parameter has no threshold, or a pattern covers none.
        """
        names = list(names)
        above = _by_name("threshold", self.threshold, names)
        if self.negative_threshold is None:
            return {name: (above[name], above[name]) for name in names}
        below = _by_name("negative_threshold", self.negative_threshold, names)
        return {name: (above[name], below[name]) for name in names}

    def as_bytes(self) -> bytes:
        """The settings as they travel: JSON, the same for equal settings; `from_bytes` takes it back."""
        return json.dumps(asdict(self)).encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> TwoBitSettings:
        """Takes `as_bytes` back."""
        return cls.from_dict(json.loads(data))

    def divisor(self, senders: int) -> float:
        """What the sum over so many senders is divided by."""
        return float(senders) if self.reduce == "mean" else 1.0


def _checked(name: str, value: object) -> float | dict[str, float] | None:
    """A threshold as float32 has it, so that sender and receiver mean the same number."""
    if value is None and name == "negative_threshold":
        return None
    if isinstance(value, Mapping):
        require(bool(value), f"{OWNER}: {name} is an empty mapping; expected name pattern -> threshold.")
        require(
            all(isinstance(pattern, str) for pattern in value),
            f"{OWNER}: the patterns of {name} must be text, got {list(value)!r}.",
        )
        return {pattern: _number(f"{name}[{pattern!r}]", item) for pattern, item in value.items()}
    return _number(name, value)


def _number(name: str, value: object) -> float:
    single = isinstance(value, Tensor) and value.numel() == 1 and value.dtype.is_floating_point
    real = isinstance(value, numbers.Real) and not isinstance(value, (bool, np.bool_))
    if single or real:
        with np.errstate(over="ignore", under="ignore"), suppress(OverflowError):
            rounded = float(np.float32(float(value)))  # type: ignore[arg-type]  # one number
            if rounded > 0 and math.isfinite(rounded):
                return rounded
    raise ConfigError(f"{OWNER}: {name} must be above 0 and within float32, got {value!r}.")


def _by_name(setting: str, value: Threshold, names: list[str]) -> dict[str, float]:
    if not isinstance(value, Mapping):
        return dict.fromkeys(names, value)
    found = {}
    for name in names:
        covering = [item for pattern, item in value.items() if matches(name, [pattern])]
        require(
            bool(covering),
            f"{OWNER}: no pattern of {setting} covers parameter {name!r}; add one, or '*' as the last.",
        )
        found[name] = covering[0]
    for pattern in value:
        if not any(matches(name, [pattern]) for name in names):
            near = get_close_matches(pattern, names, n=1, cutoff=0.3)
            hint = f"; did you mean {near[0]!r}?" if near else "."
            raise ConfigError(f"{OWNER}: pattern {pattern!r} of {setting} covers no parameter{hint}")
    return found
