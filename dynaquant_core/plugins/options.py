"""The options that every framework's plugin takes, under the same names."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from dynaquant_core.config import require, require_choice, require_number, require_threshold
from dynaquant_core.methods.base import Method
from dynaquant_core.search.quality import Mode
from dynaquant_core.store.trail import Trail

__all__ = ["PluginOptions"]

OWNER = "DynaQuant"


@dataclass(frozen=True, slots=True, kw_only=True)
class PluginOptions:
    """How checkpoints are made; the same in every framework.

    Args:
        threshold: allowed relative degradation at each checkpoint, a share (0.01 = 1%).
        evaluate: takes nothing, or the model; returns a number, or one a batch, on fixed held-out batches;
            None: the framework's own validation, where the plugin has one.
        mode: whether the metric is to be minimised ("min") or maximised ("max").
        method: name, mapping with a name and options, or method object; None: that of the checkpoint that was
            loaded, and in a fresh run the project's default, "lattice".
        moments: policy for optimizer moments: "8bit", "exact", "compact", "minimal", "sparse", "second"
            or "none".
        exact: name patterns kept bit for bit; "*" is everything.
        window: optimizer steps before a save in which gradients are averaged.
        max_chain: deltas after a key checkpoint, at most; 0: keys only.
        on_error: whether a save that fails raises ("raise") or is logged ("warn"; a bug with its traceback).

    Raises:
        ConfigError: a value is of the wrong type or out of range.

    Example:
        >>> PluginOptions(threshold=0.02).moments
        '8bit'
    """

    threshold: float = 0.01
    evaluate: Callable[..., Any] | None = None
    mode: Mode = "min"
    method: str | Mapping[str, Any] | Method | None = None
    moments: str = "8bit"
    exact: str | Sequence[str] = ()
    window: int = 50
    max_chain: int = 8
    on_error: Literal["raise", "warn"] = "raise"

    def __post_init__(self) -> None:
        require_threshold(OWNER, self.threshold)
        good = self.evaluate is None or callable(self.evaluate)
        require(good, f"{OWNER}: evaluate must be a function or None, got {type(self.evaluate).__name__}.")
        require_choice(OWNER, "mode", self.mode, ("min", "max"))
        require_number(OWNER, "window", self.window, 0, math.inf, open_high=True)
        require(type(self.window) is int, f"{OWNER}: window must be a whole number, got {self.window!r}.")
        require_choice(OWNER, "on_error", self.on_error, ("raise", "warn"))
        self.trail()  # judges the others

    def trail(self) -> Trail:
        """What writes checkpoints with these options."""
        return Trail(method=self.method, moments=self.moments, exact=self.exact, max_chain=self.max_chain)
