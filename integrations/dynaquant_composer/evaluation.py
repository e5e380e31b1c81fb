"""Measuring the live model on the trainer's own evaluators, without touching their metrics."""

from __future__ import annotations

import copy
import logging
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any, Final, Literal

from composer.core import Evaluator, State
from composer.core.precision import get_precision_context
from composer.loggers import Logger
from composer.trainer.trainer import _adjust_device_eval_microbatch_size, _is_cuda_oom

from dynaquant_composer.batches import batches_of, untouched_generators
from dynaquant_core.errors import ConfigError
from dynaquant_core.plugins.generators import put_rng_back, rng_state

__all__ = ["Evaluation", "bare_model", "metric_of", "unheard_of"]

logger = logging.getLogger(__name__)

Mode = Literal["min", "max"]

#: Metrics of Composer, which do not tell by themselves which way they point.
HIGHER_IS_BETTER: Final = {"BinaryF1Score", "Dice", "MAP", "MIoU", "MaskedAccuracy"}
LOWER_IS_BETTER: Final = {"CrossEntropy", "LanguageCrossEntropy", "LanguagePerplexity", "LossMetric"}


def bare_model(state: State) -> Any:
    """The user's model: distributed wrappers synchronise in their forward pass."""
    return state.model.module if state.is_model_ddp else state.model


class Evaluation:
    """Gives the metric's mean over the evaluators that have it, on all their data, on every rank the same.

    Args:
        state: of the trainer.
        metric: name of a metric of the evaluators; None: of each the first one that fits ``mode``.
        mode: whether it is to be minimised or maximised.

    Raises:
        ConfigError: no evaluator has such a metric.
    """

    def __init__(self, state: State, metric: str | None, mode: Mode) -> None:
        self._state = state
        self._names = _names_of(state, metric, mode)
        said = ", ".join(f"{name} of {label}" for label, name in self._names.items())
        logger.info("checkpoints are searched for by %s (mode %r)", said, mode)
        others = [each.label for each in state.evaluators if each.label not in self._names]
        if others:
            logger.warning(
                "checkpoints are searched for by %s alone; no metric that fits: %s", said, ", ".join(others)
            )
        if len(set(self._names.values())) > 1:
            logger.warning("the mean of %s need not be on one scale; name one of them with metric=", said)

    def __call__(self) -> float:
        """The metric of the model as it is."""
        measured = [each for each in self._state.evaluators if each.label in self._names]
        values = [self._measure(evaluator) for evaluator in measured]
        return math.fsum(values) / len(values)

    def _measure(self, evaluator: Evaluator) -> float:
        """One evaluator's metric; where its microbatches do not fit, it is measured anew in smaller ones."""
        begun = rng_state()
        while True:
            try:
                return self._measure_once(evaluator)
            except RuntimeError as error:
                if not (evaluator.auto_microbatching and _is_cuda_oom(error)):
                    raise
            put_rng_back(begun)
            _adjust_device_eval_microbatch_size(evaluator)  # once the error holds no tensors any more

    def _measure_once(self, evaluator: Evaluator) -> float:
        metric = copy.deepcopy(self._state.eval_metrics[evaluator.label][self._names[evaluator.label]])
        metric.sync_on_compute = metric.dist_sync_on_step = False  # ranks measure different candidates
        metric.reset()
        metric = self._state.device.module_to_device(metric)
        model, spec = bare_model(self._state), evaluator.dataloader
        reading = batches_of(evaluator, int(self._state.timestamp.batch))
        with untouched_generators(self._state.evaluators, model), reading as batches:
            for batch in batches:
                size = evaluator.device_eval_microbatch_size
                for part in spec.split_batch(spec.batch_transforms(batch), size):
                    there = self._state.device.batch_to_device(part)
                    self._update(model, metric, spec.microbatch_transforms(there))
        return self._number(metric, evaluator)

    def _number(self, metric: Any, evaluator: Evaluator) -> float:
        value = metric.compute()
        try:
            return float(value)
        except (TypeError, ValueError, RuntimeError) as error:
            name = self._names[evaluator.label]
            raise ConfigError(
                f"metric {name!r} of evaluator {evaluator.label!r} is no single number: name another "
                f"one with metric=, or give evaluate="
            ) from error

    def _update(self, model: Any, metric: Any, batch: Any) -> None:
        precision, settings = self._state.precision, self._state.precision_config
        with get_precision_context(precision, settings, fp8_autocast_enabled=False):
            outputs = model.eval_forward(batch)
        with get_precision_context(precision, settings):
            model.update_metric(batch, outputs, metric)


def unheard_of(
    evaluate: Callable[..., Any], heard: Callable[[], tuple[State, Logger] | None]
) -> Callable[..., Any]:
    """The user's ``evaluate``, which may ask the trainer (``trainer.eval()``); it takes what it took.

    What it measures are candidates: a callback that stops early would take their metrics for the model's,
    and an algorithm that swaps weights as an evaluation ends (EMA) would leave a candidate in their place.

    Args:
        evaluate: of the user.
        heard: the trainer's state and logger; None where there is no trainer yet.
    """

    @wraps(evaluate, updated=())
    def measure(*model: Any) -> Any:
        around = heard()
        if around is None:
            return evaluate(*model)
        with _unheard(*around):
            found = evaluate(*model)
            return list(found) if isinstance(found, Iterator) else found

    return measure


@contextmanager
def _unheard(state: State, destinations: Logger) -> Iterator[None]:
    """Inside it no callback and no algorithm is called, nothing is logged, and metrics are copies."""
    names = (
        "_callbacks",
        "_algorithms",
        "eval_metrics",
        "eval_timestamp",
        "metric_outputs",
        "batch",
        "outputs",
    )
    before = {name: getattr(state, name) for name in names}
    evaluators, told = list(state.evaluators), destinations.destinations
    try:
        state._callbacks, state._algorithms, destinations.destinations = [], [], ()
        state.eval_metrics = copy.deepcopy(state.eval_metrics)
        yield
    finally:
        destinations.destinations = told
        state.evaluators = evaluators
        for name, value in before.items():
            setattr(state, name, value)


def _names_of(state: State, metric: str | None, mode: Mode) -> dict[str, str]:
    """Label -> metric of the evaluators that have one that fits; raises ConfigError where none does."""
    found = {
        evaluator.label: _fitting(state.eval_metrics[evaluator.label], metric, mode, evaluator.label)
        for evaluator in state.evaluators
    }
    names = {label: name for label, name in found.items() if isinstance(name, str)}
    misfits = [error for error in found.values() if isinstance(error, ConfigError)]
    if names:
        return names
    if len(misfits) == 1:
        raise misfits[0]
    first = str(misfits[0]).rstrip(".")
    raise ConfigError(f"{first}; none of the {len(misfits)} evaluators has a metric that fits.")


def _fitting(metrics: dict[str, Any], name: str | None, mode: Mode, label: str) -> str | ConfigError:
    """As `metric_of`; what it raises is given back."""
    try:
        return metric_of(metrics, name, mode, label)
    except ConfigError as error:
        return error


def metric_of(metrics: dict[str, Any], name: str | None, mode: Mode, label: str) -> str:
    """Which of an evaluator's metrics to search by.

    Args:
        metrics: by name.
        name: the user's choice, or None.
        mode: "min" or "max".
        label: of the evaluator, for the error.

    Raises:
        ConfigError: there is none of that name, or none that fits ``mode``; or the one named does not.
    """
    wanted = mode == "max"
    if name is not None:
        if name not in metrics:
            raise ConfigError(
                f"evaluator {label!r} has no metric {name!r}; it has {', '.join(metrics) or 'none'}."
            )
        if _higher_is_better(metrics[name]) is (not wanted):
            better, right = ("lower", "min") if wanted else ("higher", "max")
            raise ConfigError(
                f"metric {name!r} of evaluator {label!r} is the better the {better} it is, and mode is "
                f"{mode!r}: give mode={right!r}, or another metric."
            )
        return name
    for fits in (wanted, None):  # those that say so come before those that do not tell
        for found, metric in metrics.items():
            if _higher_is_better(metric) is fits:
                return found
    raise ConfigError(
        f"none of the metrics of evaluator {label!r} ({', '.join(metrics) or 'none'}) is one to "
        f"{'maximise' if wanted else 'minimise'}: give metric= and mode=, or evaluate=."
    )


def _higher_is_better(metric: Any) -> bool | None:
    """Which way a metric points; None: it does not tell.  Composer's own do not, and are known by name."""
    if metric.higher_is_better is not None:
        return bool(metric.higher_is_better)
    names = [kind.__name__ for kind in type(metric).__mro__ if kind.__module__.startswith("composer.metrics")]
    if any(name in HIGHER_IS_BETTER for name in names):
        return True
    return False if any(name in LOWER_IS_BETTER for name in names) else None
