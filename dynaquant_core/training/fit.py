"""Whether a stored state dictionary fits a module: names, shapes and dtypes, before anything is loaded."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from dynaquant_core.errors import StateMismatchError
from dynaquant_core.training.names import canonical_name

__all__ = ["Misfit", "misfits", "own_ways", "require_fit"]

#: Differences listed in an error before the rest is only counted.
SHOWN: Final = 8

#: Where torch's own modules and wrappers are written, whose ways to load take names and shapes as they are:
#: batch norm counts what an older version did not, activation checkpointing strips its prefix.  Those of
#: `torch.ao` are not here: an observer takes its shape from the first batch, and from what it loads.
PLAIN: Final = ("torch.nn.", "torch.distributed.")

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


def misfits(
    prefix: str,
    live: Mapping[str, Any],
    stored: Any,
    side: str = "the model",
    beyond: Collection[str] = (),
) -> list[Misfit]:
    """One for each tensor that is missing, unknown, or of another shape or dtype.

    Args:
        prefix: goes before the names.
        live: the module's own state dictionary.
        stored: the checkpoint's.
        side: what the module is called.
        beyond: paths of modules that are not compared (`own_ways`).

    Example:
        >>> for one in misfits("", {"weight": torch.zeros(2)}, {"weight": torch.zeros(3)}):
        ...     print(one.phrase)
        weight is (3,) float32 in the checkpoint and (2,) float32 in the model
    """
    if not isinstance(stored, Mapping):
        return [Misfit(f"{prefix.rstrip('.') or side} is {type(stored).__name__} in the checkpoint")]
    if beyond:
        live, stored = _without(live, beyond), _without(stored, beyond)
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


def own_ways(module: nn.Module, *, canonical: bool = True) -> list[str]:
    """Paths of the modules that load in a way of their own: a metric, say, may grow its buffers as it loads.

    What lies below such a module is its affair, and so is everything ("") where the module itself is one.

    Args:
        module: whose state is to be compared.
        canonical: whether its names are compared without wrappers' prefixes; else as they are.

    Example:
        >>> own_ways(nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)))
        []
    """
    if not _is_plain(type(module).load_state_dict):
        return [""]
    return [
        canonical_name(module, path) if canonical and path else path
        for path, part in module.named_modules(remove_duplicate=False)
        if not _is_plain(type(part)._load_from_state_dict)
        or not all(
            _is_plain(getattr(hook, "hook", hook)) for hook in part._load_state_dict_pre_hooks.values()
        )
    ]


def _is_plain(way: Any) -> bool:
    """Whether a function, or an object in its place, is one of torch's that load plainly."""
    return str(getattr(way, "__module__", "")).startswith(PLAIN)


def _without(state: Mapping[str, Any], paths: Collection[str]) -> dict[str, Any]:
    """What lies below none of the paths, with the prefix of `nn.DataParallel` or without it."""
    starts = tuple(f"{path}.".removeprefix(WRAPPED) if path else "" for path in paths)
    return {
        name: value for name, value in state.items() if not str(name).removeprefix(WRAPPED).startswith(starts)
    }


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
