"""Puts a captured state back into a training run: everything is checked before anything is touched."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.parameter import is_lazy

from dynaquant_core.errors import StateMismatchError
from dynaquant_core.training.capture import model_state
from dynaquant_core.training.names import parameter_names
from dynaquant_core.training.optimizers import by_number
from dynaquant_core.training.rng import put_rng_back
from dynaquant_core.training.subject import Subject, named
from dynaquant_core.training.versions import as_state_dict

__all__ = ["put_back"]

logger = logging.getLogger(__name__)

#: Names listed in an error before the rest is only counted.
SHOWN = 8


def put_back(subject: Subject, tree: Mapping[str, Any]) -> None:
    """Puts what `capture` took back into model, optimizer, scheduler, scaler, extra and random streams.

    What the checkpoint holds and the run does not have is left out, with a line in the log.

    Args:
        subject: the run to restore.
        tree: the loaded state; its tensors become the optimizer's own, so they must be used nowhere else.

    Raises:
        StateMismatchError: names, shapes or dtypes differ, or the checkpoint lacks what the run needs; names
            the tensors; nothing was touched.  Or an object's own ``load_state_dict`` refused, which no check
            can foresee: the message then says that the run is restored in part.
    """
    steps = [
        *_models(subject, tree),
        *_optimizers(subject, tree),
        *_others(subject, tree),
    ]
    for step in steps:
        _do(step)
    if "rng" in tree:
        put_rng_back(tree["rng"])
    _say_left_out(subject, tree)


@dataclass(frozen=True, slots=True)
class _Step:
    """One object's ``load_state_dict``, with what it will be given."""

    what: str
    load: Callable[[Any], object]
    state: Any


def _do(step: _Step) -> None:
    try:
        step.load(step.state)
    except Exception as error:
        raise StateMismatchError(
            f"{step.what} refused its stored state ({type(error).__name__}: {error}); the run is restored in "
            f"part only and must not be trained on."
        ) from error


def _models(subject: Subject, tree: Mapping[str, Any]) -> list[_Step]:
    stored = _parts(tree, "model", subject.models)
    problems = [
        problem
        for name, model in subject.models.items()
        for problem in _differences(f"{name}." if name else "", model_state(model), stored[name])
    ]
    if problems:
        more = f"; and {len(problems) - SHOWN} more" if len(problems) > SHOWN else ""
        raise StateMismatchError(
            f"the checkpoint does not fit the model: {'; '.join(problems[:SHOWN])}{more}. "
            f"Build the model as it was built when the checkpoint was saved; nothing was restored."
        )
    versions = dict.fromkeys(subject.models)  # checkpoints from before they were stored
    if "versions" in tree:
        versions = _parts(tree, "versions", subject.models)
    steps = []
    for name, model in subject.models.items():
        state = as_state_dict(model, stored[name], versions[name])
        steps.append(_Step(_called("model", name), model.load_state_dict, state))
    return steps


def _called(part: str, name: str) -> str:
    return f"{part}[{name!r}]" if name else part


def _differences(prefix: str, live: Mapping[str, Any], stored: Any) -> list[str]:
    """One phrase for each tensor that is missing, unknown, or of another shape or dtype."""
    if not isinstance(stored, Mapping):
        return [f"{prefix or 'model'} is {type(stored).__name__} in the checkpoint"]
    found = [f"{prefix}{name} is not in the checkpoint" for name in live if name not in stored]
    found += [f"{prefix}{name} is not in the model" for name in stored if name not in live]
    for name, value in live.items():
        if name in stored and isinstance(value, Tensor):
            found += [f"{prefix}{name} {phrase}" for phrase in _difference(value, stored[name])]
    return found


def _difference(live: Tensor, stored: Any) -> list[str]:
    if live.is_meta:
        return ["has no memory yet (meta device): materialise the model first"]
    if is_lazy(live):
        return ["has no shape yet (lazy module): run one forward pass first"]
    if not isinstance(stored, Tensor):
        return [f"is {type(stored).__name__} in the checkpoint"]
    if (live.shape, live.dtype) == (stored.shape, stored.dtype):
        return []
    was, now = (f"{tuple(tensor.shape)} {_short(tensor.dtype)}" for tensor in (stored, live))
    return [f"is {was} in the checkpoint and {now} in the model"]


def _short(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _optimizers(subject: Subject, tree: Mapping[str, Any]) -> list[_Step]:
    if not subject.optimizers:
        return []
    names = parameter_names(subject.models)
    stored = _parts(tree, "optimizer", subject.optimizers)
    steps = []
    for name, optimizer in subject.optimizers.items():
        what = _called("optimizer", name)
        state = by_number(stored[name], optimizer, names, what)
        steps.append(_Step(what, optimizer.load_state_dict, state))
    return steps


def _others(subject: Subject, tree: Mapping[str, Any]) -> list[_Step]:
    """Scheduler, scaler and extra; a scaler that was off when it was saved has nothing to give back.

    What has a ``check_state_dict`` is asked before anything is touched.
    """
    steps = []
    for part, objects in (
        ("scheduler", named(subject.scheduler)),
        ("scaler", named(subject.scaler)),
        ("extra", dict(subject.extra)),
    ):
        stored = _parts(tree, part, objects) if objects else {}
        for name, item in objects.items():
            if part == "scaler" and not stored[name]:
                continue
            state = _like(stored[name], item)
            _ask(_called(part, name), item, state)
            steps.append(_Step(_called(part, name), item.load_state_dict, state))
    return steps


def _ask(what: str, item: Any, state: Any) -> None:
    if not hasattr(item, "check_state_dict"):
        return
    try:
        item.check_state_dict(state)
    except Exception as error:
        raise StateMismatchError(
            f"{what} refuses its stored state ({type(error).__name__}: {error}); nothing was restored."
        ) from error


def _parts(tree: Mapping[str, Any], part: str, objects: Mapping[str, Any]) -> dict[str, Any]:
    """The stored state of each object."""
    if part not in tree:
        raise StateMismatchError(
            f"the checkpoint holds no {part} (it holds {', '.join(map(str, tree))}); nothing was restored."
        )
    if set(objects) == {""}:
        return {"": tree[part]}
    missing = [name for name in objects if not isinstance(tree[part], Mapping) or name not in tree[part]]
    if missing:
        raise StateMismatchError(
            f"the checkpoint holds no {part} named {', '.join(map(repr, missing))}; nothing was restored."
        )
    return {name: tree[part][name] for name in objects}


def _like(stored: Any, item: Any) -> Any:
    """The stored state with counters where the object's own state has them."""
    return _with_counters(stored, item.state_dict())


def _with_counters(stored: Any, own: Any) -> Any:
    if isinstance(own, Counter):
        return Counter(stored)
    if isinstance(stored, dict) and isinstance(own, Mapping):
        return {key: _with_counters(value, own.get(key)) for key, value in stored.items()}
    if isinstance(stored, list) and isinstance(own, list) and len(stored) == len(own):
        return [_with_counters(*pair) for pair in zip(stored, own, strict=True)]
    return stored


def _say_left_out(subject: Subject, tree: Mapping[str, Any]) -> None:
    here = {"step", "rng", "model", "versions", *(("optimizer",) if subject.optimizers else ())}
    here |= {part for part in ("scheduler", "scaler") if getattr(subject, part) is not None}
    here |= {"extra"} if subject.extra else set()
    left = [str(part) for part in tree if part not in here]
    left += [f"extra.{name}" for name in tree.get("extra", {}) if subject.extra and name not in subject.extra]
    if left:
        logger.warning("in the checkpoint and not restored, for lack of an object: %s", ", ".join(left))
