"""The weights that this life of a run began from: a sample, taken before its first step.

A script fills its model when and how it likes: from a checkpoint of ours, from a framework's own, from a
pretrained file after `restore` has found nothing.  What the model holds when its optimizer is about to step
for the first time is what this life began from, whoever put it there.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from dynaquant_core.hooks import OwnedHooks, untraced, watched
from dynaquant_core.training.movement import Start, place_of, places_of

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
        self._models, self._optimizers = list(models), list(optimizers)
        self._sample: _Sample | None = None
        hook = untraced(_telling(weakref.ref(self)))
        seen = [one for one in map(watched, self._optimizers) if one is not None]
        self._told = bool(seen)
        self._hooks = OwnedHooks(self, [optimizer.register_step_pre_hook(hook) for optimizer in seen])

    def again(self) -> None:
        """Tells that a checkpoint was read: another life begins with the next step."""
        self._sample = None

    def now(self) -> None:
        """Tells that the first step comes now, or came unseen; the sample is taken unless there is one."""
        if self._sample is None:
            self._sample = self._sampled()

    def start(self, live: Mapping[str, Tensor], *, still: bool = False) -> Start | None:
        """The sample under the names of a save's tensors, which share the weights' memory.

        Args:
            live: the save's tensors by name.
            still: whether it is known that before the first step nothing has moved.

        Returns:
            None before the first step, unless ``still``, and where none of the tensors is a weight of the
            models.
        """
        if still and not self._told:  # nobody will tell of the first step before it is done
            self.now()
        sample = self._sampled() if self._sample is None and still else self._sample
        # Layers may have been unfrozen, and given to an optimizer, long after the first step.
        return None if sample is None else sample.named(live, places_of(self._optimizers))

    def close(self) -> None:
        """Takes the hooks off and lets go of the models."""
        self._hooks.remove()
        self._models, self._optimizers, self._sample = [], [], None

    def _sampled(self) -> _Sample:
        # Not before it is needed: a model may have got other parameters (load_state_dict(assign=True)).
        weights = [weight for model in self._models for weight in model.parameters()]
        return _Sample(weights, Start.sampled({str(number): one for number, one in enumerate(weights)}))


@dataclass(frozen=True, slots=True)
class _Sample:
    """A sample by the weights' numbers.

    Args:
        weights: of the models.
        start: number of a weight, as text -> sample.
    """

    weights: list[nn.Parameter]
    start: Start

    def named(self, live: Mapping[str, Tensor], trained: Collection[object]) -> Start | None:
        """The same under the names of tensors that share memory with the weights; None where none does.

        Args:
            live: tensors by name.
            trained: places of those that are trained.
        """
        start = self.start
        numbers = {
            place_of(weight): str(number)
            for number, weight in enumerate(self.weights)
            if str(number) in start.values and place_of(weight) is not None
        }
        keys = {name: numbers.get(place_of(tensor)) for name, tensor in live.items()}
        found = {name: key for name, key in keys.items() if key is not None}
        values = {name: start.values[key] for name, key in found.items()}
        known = frozenset(name for name in found if place_of(live[name]) in trained)
        return Start(values, start.stride, known) if found else None


def _telling(begun: weakref.ref[Begun]) -> Callable[..., None]:
    """A hook that keeps nothing alive."""

    def tell(*_: Any) -> None:
        held = begun()
        if held is not None:
            held.now()

    return tell
