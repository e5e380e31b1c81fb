"""``install``: the one call that a training script adds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

from dynaquant_accelerate.guard import require_known, require_whole_weights
from dynaquant_accelerate.installed import PLACE, Installed
from dynaquant_accelerate.prepared import require_prepared
from dynaquant_core.errors import ConfigError
from dynaquant_core.plugins import PluginOptions

__all__ = ["install"]


def install(
    accelerator: Any,
    *,
    every: int | None = None,
    evaluate: Callable[..., Any] | None = None,
    threshold: float = 0.01,
    mode: Literal["min", "max"] = "min",
    method: Any = None,
    moments: str = "8bit",
    exact: str | Sequence[str] = (),
    window: int = 50,
    max_chain: int = 8,
    on_error: Literal["raise", "warn"] = "raise",
) -> Installed:
    """Makes this accelerator's ``save_state`` and ``load_state`` write and read DynaQuant checkpoints.

    Only this object is changed: another accelerator, and the classes, stay as they are.  Calling it again
    replaces the options; steps go on, whatever is prepared by then.  For another training with the same
    accelerator, `Installed.close` the first: then they begin at 0.

    Under data parallelism let every process call ``save_state``.  Where the main one alone does, it waits for
    the others for half a minute, at first, and saves without them and without a search: with ``evaluate``
    the weights are then exact.  Under automatic naming Accelerate itself waits for all.

    Args:
        accelerator: after ``prepare``; of a model alone in a script that only evaluates, where ``load_state``
            then restores the weights.
        every: optimizer steps between your calls of ``save_state``, if regular; None: the distance of the
            last two is taken to go on.  It says when gradients are worth averaging, not when to save.
        evaluate: takes nothing, or the unwrapped model; returns a number, or one a batch, on fixed held-out
            batches.  Of several models it gets a mapping, ``{"model_0": ..., "model_1": ...}`` in the order
            of ``prepare``, averages with them.  Under data parallelism every process is given it and calls
            it, for other candidates: it must see the same data everywhere and use no collectives.  None: a
            fixed careful configuration is used.
        threshold: allowed relative degradation at each checkpoint, a share (0.01 = 1%).
        mode: whether the metric is to be minimised ("min") or maximised ("max").
        method: name, mapping with a name and options, or method object; None: the project's default.
        moments: policy for optimizer moments: "8bit", "exact", "compact", "minimal", "sparse", "second"
            or "none".
        exact: name patterns kept bit for bit; "*" is everything.
        window: optimizer steps before a save in which gradients are averaged.
        max_chain: deltas after a key checkpoint, at most.
        on_error: whether a save that fails raises ("raise") or is logged ("warn").

    Raises:
        ConfigError: an option is wrong, nothing was prepared yet, or the set-up is not supported.
        DependencyError: this Accelerate lacks what is used here.
    """
    options = PluginOptions(
        evaluate=evaluate,
        threshold=threshold,
        mode=mode,
        method=method,
        moments=moments,
        exact=exact,
        window=window,
        max_chain=max_chain,
        on_error=on_error,
    )
    if every is not None and not (type(every) is int and every > 0):
        raise ConfigError(f"every must be a whole number of optimizer steps above 0, got {every!r}.")
    require_known(accelerator)
    require_whole_weights(accelerator)
    require_prepared(accelerator)
    before = vars(accelerator).get(PLACE)
    if before is not None:
        before.close()
    return Installed(accelerator, options, every, before)
