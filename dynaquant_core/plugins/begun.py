"""The weights that this life of a framework's run began from: a sample, taken before its first step.

A framework fills its model when and how it likes, from our checkpoint or from its own.  What the model holds
when its optimizer is about to step for the first time is what this life began from, whoever put it there.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from dynaquant_core.hooks import untraced
from dynaquant_core.training.movement import Start, place_of

__all__ = ["Begun"]


class Begun:
    """Watches for the first step of a life.

    Args:
        models: whose weights to sample.
        optimizers: of which the first to step ends the wait.

    Example:
        >>> import torch
        >>> model = nn.Linear(2, 2, bias=False)
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        >>> begun = Begun([model], [optimizer])
        >>> begun.start({"w": model.weight}) is None
        True
        >>> _ = nn.init.zeros_(model.weight)
        >>> model.weight.grad = torch.ones(2, 2)
        >>> optimizer.step()
        >>> begun.start({"w": model.weight}).values
        {'w': tensor([0., 0., 0., 0.])}
        >>> begun.close()
    """

    def __init__(self, models: Iterable[nn.Module], optimizers: Iterable[Optimizer]) -> None:
        optimizers = list(optimizers)
        groups = [group for optimizer in optimizers for group in optimizer.param_groups]
        self._weights = [weight for model in models for weight in model.parameters()]
        self._trained = {id(weight) for group in groups for weight in group["params"]}
        self._sample: Start | None = None
        self._handles = [
            optimizer.register_step_pre_hook(untraced(self._before_step)) for optimizer in optimizers
        ]

    def again(self) -> None:
        """Tells that a checkpoint was read: another life begins with the next step."""
        self._sample = None

    def start(self, live: Mapping[str, Tensor]) -> Start | None:
        """The sample under the names of a save's tensors, which share the weights' memory.

        Returns:
            None before the first step, and where none of the tensors is a weight of the models.
        """
        sample = self._sample
        if sample is None:
            return None
        numbers = {
            place_of(weight): str(number)
            for number, weight in enumerate(self._weights)
            if str(number) in sample.values and place_of(weight) is not None
        }
        keys = {name: numbers.get(place_of(tensor)) for name, tensor in live.items()}
        found = {name: key for name, key in keys.items() if key is not None}
        trained = frozenset(name for name, key in found.items() if key in sample.trained)
        values = {name: sample.values[key] for name, key in found.items()}
        return Start(values, sample.stride, trained) if found else None

    def close(self) -> None:
        """Takes the hooks off and lets go of the models."""
        for handle in self._handles:
            handle.remove()
        self._handles, self._weights, self._sample = [], [], None

    def _before_step(self, *_: Any) -> None:
        if self._sample is None:
            weights = {str(number): weight for number, weight in enumerate(self._weights)}
            trained = {number for number, weight in weights.items() if id(weight) in self._trained}
            self._sample = Start.sampled(weights, trained)
