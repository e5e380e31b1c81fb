"""Puts a captured state back into a training run: everything is checked before anything is touched."""

from __future__ import annotations

import json
import logging
from collections.abc import Collection, Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from dynaquant_core.errors import StateMismatchError
from dynaquant_core.training.capture import CLASSES, EXTRA_VERSIONS, model_state
from dynaquant_core.training.classes import require_same_class
from dynaquant_core.training.fit import misfits, own_ways, require_fit
from dynaquant_core.training.forms import with_counters, with_functions, without_functions
from dynaquant_core.training.kinds import require_same_scheduler, way_round
from dynaquant_core.training.names import parameter_names
from dynaquant_core.training.optimizers import (
    by_number,
    load,
    rates,
    require_kind,
    scheduled_as_now,
    scheduled_as_stored,
)
from dynaquant_core.training.rng import own_rank, put_rng_back, require_rng
from dynaquant_core.training.subject import Subject, full_name, named, own_state
from dynaquant_core.training.unwritable import spare_unwritable
from dynaquant_core.training.versions import as_state_dict

__all__ = ["put_back"]

logger = logging.getLogger(__name__)

#: What a checkpoint holds beside the states of a run's objects.
BESIDE = frozenset({"step", "versions", CLASSES, EXTRA_VERSIONS, "rng"})


def put_back(subject: Subject, tree: Mapping[str, Any], fresh: Collection[str] = ()) -> None:
    """Puts what `capture` took back into model, optimizer, scheduler, scaler, extra and random streams.

    What the checkpoint holds and the run does not have is left out, with a line in the log.

    Args:
        subject: the run to restore.
        tree: the loaded state; its tensors become the optimizer's own, so they must be used nowhere else.
        fresh: names (`full_name`) of schedulers, scaler and extra that stay as they are if the checkpoint
            has none, or one of another kind, with a line in the log.  Where a scheduler stays, so do the
            learning rates it has set, unless it sets none when it is made (`ReduceLROnPlateau`) or another of
            its optimizer is restored.

    Raises:
        StateMismatchError: names, shapes, dtypes or kinds differ, or the checkpoint lacks what the run needs;
            names the tensors; nothing was touched.  Or an object's own ``load_state_dict`` refused, which no
            check can foresee: a scheduler's or scaler's is taken back, and nothing was restored; after
            another's the message says that the run is restored in part.
    """
    new = [name for name in _names(subject) if not _holds(tree, *name)]
    models = _models(subject, tree)
    _require_allowed(new, tree, fresh)
    other = [
        name for name in _names(subject) if full_name(*name) in fresh and _is_another(subject, tree, *name)
    ]
    optimizers = _optimizers(subject, tree, new + other)
    schedules = [step for part in ("scheduler", "scaler") for step in _others(subject, tree, part, other)]
    extra = _others(subject, tree, "extra", other)
    if "rng" in tree:
        require_rng(tree["rng"])
    _load_or_undo(schedules)
    for step in (*models, *optimizers, *extra):
        _load(step)
    if "rng" in tree:
        put_rng_back(tree["rng"])
        _say_whose_streams(tree["rng"].get("rank"))
    _say("not in the checkpoint, and begun as they are: %s", [full_name(*name) for name in new])
    _say("of another kind in the checkpoint, and begun as they are: %s", [full_name(*name) for name in other])
    _say("in the checkpoint and not restored, for lack of an object: %s", list(_left_out(subject, tree)))


@dataclass(frozen=True, slots=True)
class _Step:
    """One object's ``load_state_dict``, with what it will be given."""

    what: str
    item: Any
    state: Any


def _load(step: _Step) -> None:
    try:
        if isinstance(step.item, Optimizer):
            load(step.item, step.state)
        else:
            step.item.load_state_dict(step.state)
    except Exception as error:
        refusal = StateMismatchError(
            f"{step.what} refused its stored state ({type(error).__name__}: {error}); the run is restored in "
            f"part only and must not be trained on."
        )
        refusal.in_part = True
        raise refusal from error


def _load_or_undo(steps: list[_Step]) -> None:
    """Loads all, or, where one refuses, gives each back the state that it had."""
    before = [_Step(step.what, step.item, deepcopy(own_state(step.item, step.what))) for step in steps]
    last = 0
    try:
        for last, step in enumerate(steps):  # noqa: B007 - the one that refused, below
            step.item.load_state_dict(step.state)
    except Exception as error:
        for step in before[last::-1]:
            _load(step)
        raise StateMismatchError(
            f"{steps[last].what} refused its stored state ({type(error).__name__}: {error}); build it as it "
            f"was built when the checkpoint was saved, or leave it out. Nothing was restored."
        ) from error


def _models(subject: Subject, tree: Mapping[str, Any]) -> list[_Step]:
    stored = _parts(tree, "model", subject.models)
    found = []
    for name, model in subject.models.items():
        prefix = f"{name}." if name else ""
        found += misfits(prefix, model_state(model), stored[name], beyond=own_ways(model))
    require_fit("the model", found)
    versions = dict.fromkeys(subject.models)  # checkpoints from before they were stored
    if "versions" in tree:
        versions = _parts(tree, "versions", subject.models)
    steps = []
    for name, model in subject.models.items():
        what = _called("model", name)
        state = as_state_dict(model, stored[name], versions[name])
        spare_unwritable(model, state, what)
        steps.append(_Step(what, model, state))
    return steps


def _called(part: str, name: str) -> str:
    return f"{part}[{name!r}]" if name else part


def _optimizers(subject: Subject, tree: Mapping[str, Any], new: list[tuple[str, str]]) -> list[_Step]:
    if not subject.optimizers:
        return []
    names = parameter_names(subject.models)
    stored = _parts(tree, "optimizer", subject.optimizers)
    schedulers = {("scheduler", name): item for name, item in named(subject.scheduler).items()}
    steps = []
    for name, optimizer in subject.optimizers.items():
        what = _called("optimizer", name)
        state = by_number(stored[name], optimizer, names, what)
        require_same_class(_class_in(tree, "optimizer", name), optimizer, what, "optimizer")
        own = {
            key: item for key, item in schedulers.items() if _drives(item, optimizer, alone=len(stored) == 1)
        }
        begun = [item for key, item in own.items() if key in new]
        if begun:
            state = _scheduled(what, state, optimizer, begun, others=len(own) > len(begun))
        steps.append(_Step(what, optimizer, state))
    return steps


def _drives(scheduler: Any, optimizer: Optimizer, *, alone: bool) -> bool:
    """Whether a scheduler is of this optimizer, ``alone`` in the run: a wrapper need not say whose it is."""
    held = getattr(scheduler, "optimizer", optimizer if alone else None)
    return held is not None and any(held is one for one in (optimizer, getattr(optimizer, "optimizer", None)))


def _scheduled(what: str, state: Any, optimizer: Optimizer, begun: list[Any], *, others: bool) -> Any:
    """The state with the learning rates that the run goes on with, where schedulers begin anew.

    Args:
        what: the optimizer is called in the log.
        state: the stored one.
        optimizer: that will load it.
        begun: its schedulers that begin as they are.
        others: whether more of its schedulers are restored.
    """
    has_set = not all(isinstance(getattr(item, "scheduler", item), ReduceLROnPlateau) for item in begun)
    if has_set and not others:
        state = scheduled_as_now(state, optimizer)
        logger.warning("%s goes on at learning rate %s, as its new scheduler has it", what, rates(state))
    else:
        state = scheduled_as_stored(state, optimizer)
        logger.warning("%s goes on at learning rate %s, that of the checkpoint", what, rates(state))
    return state


def _class_in(tree: Mapping[str, Any], part: str, name: str) -> Any:
    """What `class_of` gave when the state was saved; None in checkpoints from before it was stored."""
    said = tree.get(CLASSES)
    return said.get(full_name(part, name)) if isinstance(said, Mapping) else None


def _require_kind(tree: Mapping[str, Any], part: str, name: str, item: Any, state: Any, own: Any) -> None:
    """Refuses another kind of scheduler's state, or optimizer's in extra; ``own`` is what the object says."""
    where, full = _called(part, name), full_name(part, name)
    if part == "scheduler" or isinstance(item, LRScheduler):
        require_same_scheduler(state, without_functions(own), where, full)
    elif isinstance(item, Optimizer):
        require_kind(state, item, own, where, full)
    else:
        return
    require_same_class(_class_in(tree, part, name), item, where, full)


def _is_another(subject: Subject, tree: Mapping[str, Any], part: str, name: str) -> bool:
    """Whether the checkpoint holds another kind's state for an object."""
    if not _holds(tree, part, name):
        return False
    item = subject.others[part][name]
    own, stored = own_state(item, _called(part, name)), _parts(tree, part, {name: item})[name]
    try:
        _require_kind(tree, part, name, item, stored, own)
    except StateMismatchError:
        return True
    return False


def _others(
    subject: Subject, tree: Mapping[str, Any], part: str, other: Collection[tuple[str, str]]
) -> list[_Step]:
    """Those that the checkpoint holds; a scaler that was off when it was saved has nothing to give back.

    Those in ``other`` begin as they are.  What has a ``check_state_dict`` is asked before anything is
    touched.
    """
    objects = {
        name: item
        for name, item in subject.others[part].items()
        if _holds(tree, part, name) and (part, name) not in other
    }
    stored = _parts(tree, part, objects) if objects else {}
    steps = []
    for name, item in objects.items():
        if part == "scaler" and not stored[name]:
            continue
        what = _called(part, name)
        own = own_state(item, what)
        state = with_counters(stored[name], own)
        _require_kind(tree, part, name, item, state, own)
        if part == "scheduler" or isinstance(item, LRScheduler):
            state = with_functions(state, own)
        elif isinstance(item, Optimizer):
            state = by_number(state, item, {}, what)
        if hasattr(item, "check_state_dict"):
            _ask(what, item, state)
        elif isinstance(item, nn.Module):
            require_fit(what, misfits("", own, state, what, own_ways(item, canonical=False)))
        if part == "extra" and isinstance(item, nn.Module) and isinstance(state, Mapping):
            versions = tree.get(EXTRA_VERSIONS)
            said = versions.get(name) if isinstance(versions, Mapping) else None
            state = as_state_dict(item, state, said, canonical=False)
            spare_unwritable(item, state, what)
        steps.append(_Step(what, item, state))
    return steps


def _ask(what: str, item: Any, state: Any) -> None:
    try:
        item.check_state_dict(state)
    except Exception as error:
        raise StateMismatchError(
            f"{what} refuses its stored state ({type(error).__name__}: {error}); nothing was restored."
        ) from error


def _say_whose_streams(saved: Any) -> None:
    """One rank saved its own; whether the others drew the same only the script knows."""
    own = own_rank()
    if own is not None and own != (saved or 0):  # a process that was in no job stands for the first
        logger.warning(
            "the random streams of the rank that saved were put back on rank %d as well: ranks that were "
            "seeded apart have to be once more, after restore()",
            own,
        )


def _names(subject: Subject) -> list[tuple[str, str]]:
    """Part and name of each scheduler, scaler and extra."""
    return [(part, name) for part, objects in subject.others.items() for name in objects]


def _holds(tree: Mapping[str, Any], part: str, name: str) -> bool:
    return part in tree and (not name or (isinstance(tree[part], Mapping) and name in tree[part]))


def _require_allowed(new: list[tuple[str, str]], tree: Mapping[str, Any], fresh: Collection[str]) -> None:
    """Refuses a part that the checkpoint lacks and that nobody has said to be new."""
    lacking = [full_name(*name) for name in new]
    refused = [name for name in lacking if name not in fresh]
    if refused:
        call = ", ".join(json.dumps(name, ensure_ascii=False) for name in lacking)
        raise StateMismatchError(
            f"the checkpoint holds no {', '.join(refused)} (it holds {', '.join(_held(tree))}): to let what "
            f"is new begin as it is, call restore(fresh=({call}{',' if len(lacking) == 1 else ''})); nothing "
            f"was restored."
        )


def _held(tree: Mapping[str, Any]) -> Iterator[str]:
    for part, stored in tree.items():
        several = part == "extra" and isinstance(stored, Mapping)
        yield from (full_name(part, str(name)) for name in stored) if several else [str(part)]


def _parts(tree: Mapping[str, Any], part: str, objects: Mapping[str, Any]) -> dict[str, Any]:
    """The stored state of each object."""
    if part not in tree:
        raise StateMismatchError(
            f"the checkpoint holds no {part} (it holds {', '.join(_held(tree))}): build what it holds, "
            f"{way_round(part)}; nothing was restored."
        )
    if set(objects) == {""}:
        return {"": tree[part]}
    missing = [name for name in objects if not _holds(tree, part, name)]
    if missing:
        raise StateMismatchError(
            f"the checkpoint holds no {part} named {', '.join(map(repr, missing))}; give as many, under the "
            f"same names, as when it was saved; nothing was restored."
        )
    return {name: tree[part][name] for name in objects}


def _left_out(subject: Subject, tree: Mapping[str, Any]) -> Iterator[str]:
    """What the checkpoint holds and the run has no object for, as a user calls it."""
    here: dict[str, Mapping[str, Any]] = {
        "model": subject.models,
        "optimizer": subject.optimizers,
        **subject.others,
    }
    for part, stored in tree.items():
        objects = here.get(part, {})
        if part in BESIDE or "" in objects:
            continue
        if not objects or not isinstance(stored, Mapping):
            yield str(part)
        elif part == "extra" or any(name in stored for name in objects):
            yield from (full_name(part, str(name)) for name in stored if name not in objects)
        else:  # the state of a single object, where the run has several
            yield str(part)


def _say(line: str, names: list[str]) -> None:
    if names:
        logger.warning(line, ", ".join(names))
