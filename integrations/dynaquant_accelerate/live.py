"""The state of what an accelerator has prepared: taken as live tensors, put back once it is found to fit."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from dynaquant_accelerate.prepared import averages, inner_optimizers
from dynaquant_core.errors import StateMismatchError
from dynaquant_core.plugins import spare_unwritable

__all__ = ["NAMED", "modules_of", "put_back", "state_of"]

#: Names listed in an error before the rest is only counted.
SHOWN = 5

#: What a checkpoint calls one of several modules.
NAMED = re.compile(r"(model|average)_\d+")


def modules_of(accelerator: Any, models: Sequence[nn.Module]) -> dict[str, nn.Module]:
    """Bare modules by the names that a checkpoint gives them: "model_0", "average_0".

    What has no state is left out, such as a loss that was prepared too.

    Args:
        accelerator: after ``prepare``.
        models: some or all of its models, wrapped as it holds them.
    """
    places = {id(model): place for place, model in enumerate(accelerator._models)}
    bare = {
        f"model_{places[id(model)]}": accelerator.unwrap_model(model, keep_torch_compile=False)
        for model in models
    }
    named = bare | {f"average_{place}": module for place, module in enumerate(averages(accelerator))}
    return {name: module for name, module in named.items() if module.state_dict()}


def state_of(
    accelerator: Any, models: Sequence[nn.Module], written: Sequence[nn.Module], step: int
) -> dict[str, Any]:
    """The tree to save; its tensors are the live ones.

    One model alone stands under "model" as it is, several by name; so do optimizers, by number.  Under
    "files" are the names of the models of which Accelerate writes a file each, None for one without state.
    """
    states = {name: module.state_dict() for name, module in modules_of(accelerator, models).items()}
    optimizers = [optimizer.state_dict() for optimizer in inner_optimizers(accelerator)]
    places = {id(model): f"model_{place}" for place, model in enumerate(accelerator._models)}
    names = [places[id(model)] for model in written]
    files = [name if name in states else None for name in names]
    return {"step": step, "model": _alone(states), "files": files, "optimizer": optimizers}


def put_back(accelerator: Any, models: Sequence[nn.Module], tree: Mapping[str, Any]) -> None:
    """Puts a loaded tree into the same objects; weights alone where no optimizer is prepared, as natively.

    Raises:
        StateMismatchError: it was saved of others; names them; nothing was changed.
    """
    modules, optimizers = modules_of(accelerator, models), inner_optimizers(accelerator)
    prepared = modules_of(accelerator, accelerator._models)
    states = tree["optimizer"] if optimizers else []
    stored = _by_name(tree["model"], modules or prepared)
    found = _other_names(modules, prepared, stored)
    for name in modules if not found else ():
        found += _differences(
            f"{name}: " if len(modules) > 1 else "", modules[name].state_dict(), stored[name]
        )
    found = found or _other_optimizers(optimizers, states)
    if found:
        more = f"; and {len(found) - SHOWN} more" if len(found) > SHOWN else ""
        raise StateMismatchError(
            f"the checkpoint does not fit: {'; '.join(found[:SHOWN])}{more}. Prepare what was prepared when "
            f"it was saved; nothing was restored."
        )
    for name, module in modules.items():
        spare_unwritable(module, stored[name], name)
    for name, module in modules.items():
        module.load_state_dict(stored[name])
    for optimizer, state in zip(optimizers, states, strict=True):
        optimizer.load_state_dict(state)


def _alone(states: dict[str, Any]) -> Any:
    return next(iter(states.values())) if len(states) == 1 else states


def _by_name(stored: Mapping[str, Any], live: Iterable[str]) -> dict[str, Any]:
    """The stored states by module; one that stands alone has the name of the only one here."""
    if all(NAMED.fullmatch(str(name)) and isinstance(state, Mapping) for name, state in stored.items()):
        return {name: state for name, state in stored.items() if state}
    names = list(live)
    return {names[0] if len(names) == 1 else "one alone": stored}


def _other_names(wanted: Iterable[str], prepared: Iterable[str], stored: Mapping[str, Any]) -> list[str]:
    """A phrase where a model has no state in the checkpoint, or a state no model here.

    Args:
        wanted: models that no hook of the user has taken out.
        prepared: all of them.
        stored: what is in the checkpoint.
    """
    if set(wanted) <= set(stored) <= set(prepared):
        return []
    here, there = ", ".join(prepared) or "none", ", ".join(list(stored)[:SHOWN]) or "none"
    return [f"the models here are {here} and those in the checkpoint {there}"]


def _differences(prefix: str, live: Mapping[str, Any], stored: Mapping[str, Any]) -> list[str]:
    """One phrase for each tensor that is missing, unknown or of another shape."""
    found = [f"{prefix}{name} is not in the checkpoint" for name in live if name not in stored]
    found += [f"{prefix}{name} is not in the model" for name in stored if name not in live]
    for name, tensor in live.items():
        other = stored.get(name)
        if isinstance(tensor, Tensor) and isinstance(other, Tensor) and tensor.shape != other.shape:
            shapes = f"{tuple(other.shape)} in the checkpoint and {tuple(tensor.shape)} in the model"
            found.append(f"{prefix}{name} is {shapes}")
    return found


def _other_optimizers(optimizers: Sequence[Optimizer], stored: Sequence[Mapping[str, Any]]) -> list[str]:
    """One phrase for each optimizer of another kind, or over other groups of parameters."""
    if len(optimizers) != len(stored):
        return [f"there are {len(optimizers)} optimizers here and {len(stored)} in the checkpoint"]
    found = []
    for number, (optimizer, state) in enumerate(zip(optimizers, stored, strict=True)):
        mine, theirs = optimizer.state_dict()["param_groups"], state["param_groups"]
        sizes = [[len(group["params"]) for group in groups] for groups in (mine, theirs)]
        if sizes[0] != sizes[1]:
            found.append(f"optimizer {number} has parameter groups of {sizes[0]} here and {sizes[1]} there")
        elif any(set(one) - set(two) and set(two) - set(one) for one, two in zip(mine, theirs, strict=True)):
            found.append(f"optimizer {number} is of another kind, {type(optimizer).__name__} here")
    return found
