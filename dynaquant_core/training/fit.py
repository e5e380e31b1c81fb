"""Whether a stored state dictionary fits a module: names, shapes and dtypes, before anything is loaded."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from dynaquant_core.errors import StateMismatchError

__all__ = ["Misfit", "loads_plainly", "misfits", "require_fit"]

#: Differences listed in an error before the rest is only counted.
SHOWN: Final = 8

#: What `nn.DataParallel` puts before the name of every tensor.
WRAPPED: Final = "module."

BUILD: Final = "Build the model as it was built when the checkpoint was saved"
MATERIALISE: Final = "Materialise the model first"
FORWARD: Final = "Run one forward pass first"
UNWRAP: Final = "Give model.module in place of the nn.DataParallel around it"
WRAP: Final = (
    "It was saved with nn.DataParallel around the model: give nn.DataParallel(model) to restore it, or save "
    "model.module from the start"
)


@dataclass(frozen=True, slots=True)
class Misfit:
    """One thing that does not fit, and what to do about it.

    Args:
        phrase: what is where, and what is expected.
        advice: a sentence without its end; the same one for all that it mends.
    """

    phrase: str
    advice: str = BUILD


def misfits(prefix: str, live: Mapping[str, Any], stored: Any, side: str = "the model") -> list[Misfit]:
    """One for each tensor that is missing, unknown, or of another shape or dtype.

    Args:
        prefix: goes before the names.
        live: the module's own state dictionary.
        stored: the checkpoint's.
        side: what the module is called.

    Example:
        >>> for one in misfits("", {"weight": torch.zeros(2)}, {"weight": torch.zeros(3)}):
        ...     print(one.phrase)
        weight is (3,) float32 in the checkpoint and (2,) float32 in the model
    """
    if not isinstance(stored, Mapping):
        return [Misfit(f"{prefix.rstrip('.') or side} is {type(stored).__name__} in the checkpoint")]
    if _all_wrapped(live) and not _any_wrapped(stored):
        said = Misfit(f"the names of {side} begin with {prefix}{WRAPPED} and the checkpoint's do not", UNWRAP)
        return [said, *misfits(prefix, _unwrapped(live), stored, side)]
    if _all_wrapped(stored) and not _any_wrapped(live):
        said = Misfit(f"the checkpoint's names begin with {prefix}{WRAPPED} and those of {side} do not", WRAP)
        return [said, *misfits(prefix, live, _unwrapped(stored), side)]
    found = [Misfit(f"{prefix}{name} is not in the checkpoint") for name in live if name not in stored]
    found += [Misfit(f"{prefix}{name} is not in {side}") for name in stored if name not in live]
    for name, value in live.items():
        if name in stored and isinstance(value, Tensor):
            found += _difference(f"{prefix}{name}", value, stored[name], side)
    return found


def require_fit(what: str, found: Iterable[Misfit]) -> None:
    """Refuses if anything was found; the advice of each is given once.

    Args:
        what: does the checkpoint not fit.
        found: what `misfits` gave.

    Raises:
        StateMismatchError: something was found; nothing was changed.
    """
    phrases = [one.phrase for one in found]
    if not phrases:
        return
    more = f"; and {len(phrases) - SHOWN} more" if len(phrases) > SHOWN else ""
    advice = ". ".join(dict.fromkeys(one.advice for one in found))
    raise StateMismatchError(
        f"the checkpoint does not fit {what}: {'; '.join(phrases[:SHOWN])}{more}. {advice}; nothing was "
        f"restored."
    )


def loads_plainly(module: nn.Module) -> bool:
    """Whether a module takes names and shapes as they are; a metric, say, may grow its buffers as it loads.

    Example:
        >>> loads_plainly(nn.Linear(2, 2))
        True
    """
    own = (part for part in module.modules() if not type(part).__module__.startswith("torch."))
    return not module._load_state_dict_pre_hooks and all(
        getattr(type(part), name) is getattr(nn.Module, name)
        for part in own
        for name in ("load_state_dict", "_load_from_state_dict")
    )


def _difference(name: str, live: Tensor, stored: Any, side: str) -> list[Misfit]:
    if live.is_meta:
        return [Misfit(f"{name} has no memory yet (meta device)", MATERIALISE)]
    if is_lazy(live):
        return [Misfit(f"{name} has no shape yet (lazy module)", FORWARD)]
    if not isinstance(stored, Tensor):
        return [Misfit(f"{name} is {type(stored).__name__} in the checkpoint")]
    if (live.shape, live.dtype) == (stored.shape, stored.dtype):
        return []
    was, now = (f"{tuple(tensor.shape)} {_short(tensor.dtype)}" for tensor in (stored, live))
    return [Misfit(f"{name} is {was} in the checkpoint and {now} in {side}")]


def _short(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _all_wrapped(names: Iterable[Any]) -> bool:
    return bool(names) and all(str(name).startswith(WRAPPED) for name in names)


def _any_wrapped(names: Iterable[Any]) -> bool:
    return any(str(name).startswith(WRAPPED) for name in names)


def _unwrapped(state: Mapping[Any, Any]) -> dict[str, Any]:
    return {str(name).removeprefix(WRAPPED): value for name, value in state.items()}
