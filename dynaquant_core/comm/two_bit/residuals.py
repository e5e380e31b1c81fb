"""What each parameter's gradients have left unsent, kept by parameter and laid out as buckets need it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, final

import torch
from torch import Tensor

from dynaquant_core.errors import StateMismatchError

__all__ = ["Residuals"]

#: Names listed in an error before the rest is only counted.
SHOWN = 8


@final
class Residuals:
    """A residual of float32 for every parameter, in its shape, zero at first.

    A bucket's residuals are one flat vector in the memory order of its gradients; when DDP builds its buckets
    anew, or after a restore, they move into vectors of the new layout.

    Args:
        parameters: name -> parameter; only shape, strides and device are taken.

    Example:
        >>> residuals = Residuals({"w": torch.ones(2, 2), "b": torch.ones(2)})
        >>> bucket = torch.zeros(6)
        >>> flat = residuals.flat(("b", "w"), [bucket[:2], bucket[2:].view(2, 2)], bucket)
        >>> flat += 1.0
        >>> residuals.by_name["w"].tolist()
        [[1.0, 1.0], [1.0, 1.0]]
    """

    def __init__(self, parameters: Mapping[str, Tensor]) -> None:
        self.by_name = {
            name: torch.zeros_like(parameter.detach(), dtype=torch.float32)
            for name, parameter in parameters.items()
        }
        self._flat: dict[tuple[str, ...], Tensor] = {}

    def flat(self, names: tuple[str, ...], views: Sequence[Tensor], buffer: Tensor) -> Tensor:
        """The residuals of a bucket as float32[n], live: what changes there changes in `by_name`.

        Args:
            names: the bucket's parameters in order.
            views: their gradients, views into ``buffer``, in that order.
            buffer: the bucket's flat gradient [n].
        """
        if names not in self._flat:
            self._lay_out(names, views, buffer)
        return self._flat[names]

    def state_dict(self) -> dict[str, dict[str, Tensor]]:
        """Name -> ``{"residual": tensor}``, the live tensors.

        They lie one level below the parameters' names, so that nothing takes them for copies of the weights.
        """
        return {name: {"residual": residual} for name, residual in self.by_name.items()}

    def load_state_dict(self, stored: Any) -> None:
        """Takes `state_dict` back, whatever the buckets were.

        Raises:
            StateMismatchError: names or shapes differ, or a value is not finite; nothing was touched.
        """
        self.require_fit(stored)
        for name, residual in self.by_name.items():
            residual.copy_(stored[name]["residual"])

    def _lay_out(self, names: tuple[str, ...], views: Sequence[Tensor], buffer: Tensor) -> None:
        flat = torch.zeros(buffer.numel(), dtype=torch.float32, device=buffer.device)
        for name, view in zip(names, views, strict=True):
            begin = view.storage_offset() - buffer.storage_offset()
            own = flat.as_strided(view.shape, view.stride(), begin)
            own.copy_(self.by_name[name])
            self.by_name[name] = own
        held = set(names)
        self._flat = {key: value for key, value in self._flat.items() if held.isdisjoint(key)}
        self._flat[names] = flat

    def require_fit(self, stored: Any) -> None:
        """Raises StateMismatchError unless `load_state_dict` would take this."""
        if not isinstance(stored, Mapping):
            raise StateMismatchError(
                f"two_bit: the stored residuals are {type(stored).__name__}; expected what state_dict gave; "
                f"nothing was restored."
            )
        found = [f"{name} is not in the checkpoint" for name in self.by_name if name not in stored]
        found += [f"{name} is not in the model" for name in stored if name not in self.by_name]
        found += [
            f"{name} {problem}"
            for name, residual in self.by_name.items()
            if name in stored and (problem := _problem(residual, stored[name]))
        ]
        if found:
            more = f"; and {len(found) - SHOWN} more" if len(found) > SHOWN else ""
            raise StateMismatchError(
                f"two_bit: the stored residuals do not fit the model: {'; '.join(found[:SHOWN])}{more}; "
                f"nothing was restored."
            )


def _problem(residual: Tensor, stored: Any) -> str:
    value = stored.get("residual") if isinstance(stored, Mapping) else None
    if not isinstance(value, Tensor):
        return "holds no residual in the checkpoint"
    if value.shape != residual.shape:
        return f"is {tuple(value.shape)} in the checkpoint and {tuple(residual.shape)} in the model"
    if not bool(value.isfinite().all()):
        return "is not finite in the checkpoint"
    return ""
