"""A checkpoint of another model ends in one line that names the tensors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from composer.core import State
from torch import Tensor

from dynaquant_core.errors import StateMismatchError

__all__ = ["explain_misfits", "stop_explaining"]

#: Names listed in the error before the rest is only counted.
SHOWN = 5


def explain_misfits(state: State) -> None:
    """Until `stop_explaining`, this trainer's state says which tensors do not fit the model."""
    load = state.load_model_state

    def load_model_state(state_dict: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        try:
            return load(state_dict, *args, **kwargs)
        except RuntimeError as error:  # by now algorithms that change the model have been applied
            strict = bool(args[1] if len(args) > 1 else kwargs.get("strict", True))
            found = _differences(state.get_model_state_dict(), state_dict["model"], strict=strict)
            if not found:
                raise
            more = f"; and {len(found) - SHOWN} more" if len(found) > SHOWN else ""
            raise StateMismatchError(
                f"the checkpoint does not fit the model: {'; '.join(found[:SHOWN])}{more}. Build the model "
                f"as it was built when the checkpoint was saved, or leave these out with load_ignore_keys."
            ) from error

    state.load_model_state = load_model_state


def stop_explaining(state: State) -> None:
    """Gives the state its own method back."""
    vars(state).pop("load_model_state", None)


def _differences(live: Mapping[str, Any], stored: Mapping[str, Any], *, strict: bool) -> list[str]:
    """Other shapes first, which no option forgives; missing names only where they are forbidden."""
    found = []
    for name, tensor in live.items():
        other = stored.get(name)
        if isinstance(tensor, Tensor) and isinstance(other, Tensor) and tensor.shape != other.shape:
            shapes = f"{tuple(other.shape)} in the checkpoint and {tuple(tensor.shape)} in the model"
            found.append(f"{name} is {shapes}")
    if strict:
        found += [f"{name} is not in the checkpoint" for name in live if name not in stored]
        found += [f"{name} is not in the model" for name in stored if name not in live]
    return found
