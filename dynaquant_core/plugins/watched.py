"""What a run learns from the training at hand: gradients before a save, and the quality of candidates."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from dynaquant_core.config import require
from dynaquant_core.methods.base import Method, spares_gradients
from dynaquant_core.plugins.options import PluginOptions
from dynaquant_core.training.begun import Begun
from dynaquant_core.training.choice import Chooser, Promise, manager_for
from dynaquant_core.training.evaluation import Evaluation
from dynaquant_core.training.gradients import GradientCollector, moment_averages
from dynaquant_core.training.names import parameter_names
from dynaquant_core.training.subject import named
from dynaquant_core.training.whole import require_whole

__all__ = ["Models", "Optimizers", "Watched"]

logger = logging.getLogger(__name__)

Models = nn.Module | Mapping[str, nn.Module]
Optimizers = Optimizer | Iterable[Optimizer] | Mapping[str, Optimizer]


class Watched:
    """The model and optimizers of a run; nothing at first.

    Args:
        options: of the run.
        method: that writes the weights.

    Attributes:
        model: as it was given; None where none was.
        optimizers: of the model.
        chooser: picks the configuration of a save; what it learnt outlives a change of model.
    """

    def __init__(self, options: PluginOptions, method: Method) -> None:
        self.model: Models | None = None
        self._options = options
        self._manager = manager_for(method)
        self.chooser = Chooser(None, self._manager)
        self.optimizers: list[Optimizer] = []
        self._evaluate: Callable[..., Any] | None = None
        self._spare = spares_gradients(method)
        self._collector = GradientCollector((), {})
        self._begun = Begun((), ())
        self._reported = 0.0  # seconds of the collector that earlier saves have reported

    def set(self, model: Models, optimizers: Optimizers, evaluate: Callable[..., Any] | None) -> None:
        """Watches these from now on; the same ones again change nothing.

        Raises:
            ConfigError: something is no model, no optimizer or no function, or a model is sharded.
        """
        models, listed = named(model), _listed(optimizers)
        _require_kinds(models.values(), nn.Module, "torch.nn.Module")
        _require_kinds(listed, Optimizer, "torch.optim.Optimizer")
        own = self._options.evaluate
        evaluate = evaluate if own is None else own  # an object may be false and callable
        same_model = self.model is not None and _are_same(named(self.model).values(), models.values())
        if not same_model:
            require_whole(models.values())
        if not (same_model and _are_same(self.optimizers, listed)):
            self._collector.close()
            self._collector = GradientCollector(listed, parameter_names(models), spare=self._spare)
            self._begun.close()
            self._begun = Begun(models.values(), listed)
            self._reported = 0.0
        if not (same_model and evaluate is self._evaluate):
            self._set_chooser(model, evaluate)
        self.model, self.optimizers, self._evaluate = model, listed, evaluate

    @property
    def measures(self) -> bool:
        """Whether there is an ``evaluate``, of the run's or of the framework's."""
        return self._evaluate is not None

    def use_method(self, method: Method) -> None:
        """Searches for another method from now on: a run that was loaded goes on with its own."""
        self._manager = self.chooser.manager = manager_for(method)
        self._spare = self._collector.spare = spares_gradients(method)

    def follow(self, steps_left: int | None) -> None:
        """Records gradients exactly while a save is due within the window; None: it cannot be foreseen."""
        self._collector.follow(math.inf if steps_left is None else steps_left, self._options.window)

    def gradients(self) -> dict[str, Tensor] | None:
        """The averages recorded; Adam's own where there are none; None where there are neither."""
        recorded = self._collector.averages()
        if not recorded and self.model is not None:
            recorded = moment_averages(self.optimizers, parameter_names(named(self.model)))
        return recorded or None

    def sees(self, live: Mapping[str, Tensor]) -> bool:
        """Whether what is written into these tensors shows in the model that ``evaluate`` measures.

        Copies of the weights would make every candidate look as good as the model itself.
        """
        if self.model is None or self._evaluate is None:
            return True
        models = named(self.model).values()
        own = [tensor for model in models for tensor in (*model.parameters(), *model.buffers())]
        places = {tensor.untyped_storage().data_ptr() for tensor in own}
        return any(tensor.untyped_storage().data_ptr() in places for tensor in live.values())

    def begin_life(self) -> None:
        """Tells that a checkpoint was read; movement counts from the next step on."""
        self._begun.again()

    def look_back(self, live: Mapping[str, Tensor]) -> None:
        """Lets the chooser record what a save of these tensors loses of the movement in this life."""
        self.chooser.start = self._begun.start(live)

    def begin_interval(self) -> None:
        """Frees the averages; the next window begins with `follow`."""
        self._collector.stop()

    def seconds(self) -> float:
        """What recording cost since the last call."""
        spent, self._reported = self._collector.seconds - self._reported, self._collector.seconds
        return spent

    def close(self) -> None:
        """Takes all hooks off and lets go of model and optimizers."""
        self._collector.close()
        self._collector = GradientCollector((), {})
        self._begun.close()
        self.model, self.optimizers, self._evaluate, self._reported = None, [], None, 0.0
        self._set_chooser(None, None)

    def _set_chooser(self, model: Models | None, evaluate: Callable[..., Any] | None) -> None:
        promise = None
        if model is not None and evaluate is not None:
            promise = Promise(Evaluation(evaluate, model), self._options.threshold, self._options.mode)
        state = self.chooser.state
        self.chooser = Chooser(promise, self._manager)
        self.chooser.state = state


def _listed(optimizers: Optimizers) -> list[Optimizer]:
    if isinstance(optimizers, Optimizer):
        return [optimizers]
    return list(optimizers.values() if isinstance(optimizers, Mapping) else optimizers)


def _are_same(left: Iterable[object], right: Iterable[object]) -> bool:
    return [id(item) for item in left] == [id(item) for item in right]


def _require_kinds(items: Iterable[object], kind: type, name: str) -> None:
    for item in items:
        require(isinstance(item, kind), f"watch: expected a {name}, got {type(item).__name__}.")
