"""What an accelerator has prepared, as the core sees a training run."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from dynaquant_core.errors import ConfigError

__all__ = ["averages", "inner_optimizers", "require_prepared", "whose", "written_of"]


def require_prepared(accelerator: Any) -> None:
    """Raises ConfigError unless there is a model to watch; who only evaluates has no optimizer."""
    if not accelerator._models:
        raise ConfigError(
            "the accelerator has no model yet: call dynaquant_accelerate.install(accelerator) after "
            "accelerator.prepare(model, optimizer, ...)."
        )


def averages(accelerator: Any) -> list[nn.Module]:
    """Modules registered for checkpointing: averaged copies of weights, which are weights too.

    What else is registered stays Accelerate's own, bit for bit: its tensors may be anything.
    """
    return [item for item in accelerator._custom_objects if isinstance(item, nn.Module)]


def inner_optimizers(accelerator: Any) -> list[Optimizer]:
    """The optimizers themselves, whose hooks fire only when gradients are synchronised."""
    return [wrapper.optimizer for wrapper in accelerator._optimizers]


def whose(states: Iterable[dict[str, Any]], models: Sequence[nn.Module]) -> list[nn.Module]:
    """The models whose ``state_dict`` these are: the others were taken out by another hook.

    A state of copies, which a hook has made of another precision, goes by its names.
    """
    listed = list(states)
    found = {address for state in listed for address in _addresses(state)}
    own = [model.state_dict() for model in models]
    known = {address for state in own for address in _addresses(state)}
    copies = [set(state) for state in listed if state and known.isdisjoint(_addresses(state))]
    there = []
    for model, state in zip(models, own, strict=True):
        if not _addresses(state).isdisjoint(found):
            there.append(model)
        elif state and set(state) in copies:
            copies.remove(set(state))
            there.append(model)
    return there


def written_of(
    states: Iterable[dict[str, Any]], models: Sequence[nn.Module], there: Sequence[nn.Module]
) -> list[nn.Module]:
    """The models of which Accelerate writes a file each, in its order: the file's number is the place here.

    Args:
        states: as a hook is given them; an empty one (of a loss that was prepared too) has a file as well.
        models: all of them.
        there: those of `whose`.
    """
    found, empty = {id(model) for model in there}, sum(not state for state in states)
    bare = [id(model) for model in models if not model.state_dict()]
    found.update(bare[:empty])
    return [model for model in models if id(model) in found]


def _addresses(state: dict[str, Any]) -> set[int]:
    return {value.data_ptr() for value in state.values() if isinstance(value, Tensor) and value.numel()}
