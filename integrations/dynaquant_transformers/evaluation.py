"""Measuring with the Trainer, on its own evaluation data or as the user asks it, without a trace in it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from copy import deepcopy
from functools import wraps
from itertools import islice
from typing import Any, Final

import torch
from torch import Tensor
from torch.utils.data import DataLoader
from transformers import Trainer, TrainerCallback

from dynaquant_core.plugins.generators import apart, kept

__all__ = ["TrainerEvaluation", "alone", "shadowed", "unheard", "unheard_of"]

#: The label of positions that a loss passes over.
IGNORED = -100

#: Attributes in which subclasses collect metrics between two lines of their log (TRL's trainers).
METRICS = "_metrics"

#: What the Trainer tells its callbacks, reporters among them.
EVENTS: Final = tuple(name for name in vars(TrainerCallback) if name.startswith("on_"))


class TrainerEvaluation:
    """Measures the Trainer's model as ``trainer.evaluate()`` would, but reports nothing and logs nothing.

    It runs in one process alone: under DDP each rank sees the whole evaluation set and talks to no other.

    Args:
        trainer: whose model, evaluation data, collator and loss are used; subclasses' own included.
        batches: how many batches of each evaluation set; None: all.
    """

    def __init__(self, trainer: Trainer, batches: int | None) -> None:
        self._trainer = trainer
        self._batches = batches

    def __call__(self) -> list[float]:
        """The loss of each batch."""
        with alone(self._trainer):
            losses = [self._loss(inputs) for inputs in self._inputs() if self._has_label(inputs)]
        if not losses:
            message = (
                "the evaluation data have no batch with a label (is eval_dataset empty, or read to its "
                "end?); give the Trainer another eval_dataset, or evaluate= to the callback"
            )
            raise ValueError(message)
        return losses

    def _has_label(self, inputs: Any) -> bool:
        """Whether any position of a batch counts: the loss of one without is no number."""
        if not isinstance(inputs, Mapping):
            return True
        names = [name for name in self._trainer.label_names if name in inputs]
        labels = [inputs[name] for name in names if isinstance(inputs[name], Tensor)]
        whole = [label for label in labels if not label.is_floating_point() and label.numel()]
        return not whole or any(bool((label != IGNORED).any()) for label in whole)

    def _loss(self, inputs: Any) -> float:
        trainer = self._trainer
        loss, _, _ = trainer.prediction_step(trainer.model, inputs, prediction_loss_only=True)
        if loss is None:
            message = "the evaluation data give no loss (are there labels?); give evaluate= to the callback"
            raise ValueError(message)
        return float(loss.detach().mean())

    def _inputs(self) -> Iterator[Any]:
        """The batches of every evaluation set; of one with fewer rows than a batch, these rows."""
        datasets, args = self._trainer.eval_dataset, self._trainer.args
        for name in datasets if isinstance(datasets, dict) else (None,):
            is_empty = True
            for inputs in islice(self._loader(name), self._batches):
                is_empty = False
                yield inputs
            if is_empty and args.dataloader_drop_last:  # which training wants, and left nothing to measure
                with shadowed(args, "dataloader_drop_last", False):
                    vars(self._trainer)["_eval_dataloaders"] = {}  # one with workers may have been kept
                    whole = self._loader(name)
                yield from islice(whole, self._batches)

    def _loader(self, name: str | None) -> DataLoader[Any]:
        loader: DataLoader[Any] = self._trainer.get_eval_dataloader(name)
        return loader


def unheard_of(trainer: Trainer, evaluate: Callable[..., Any]) -> Callable[..., Any]:
    """The user's ``evaluate``, which may ask the Trainer (``trainer.evaluate()``); it takes what it took.

    What it measures are candidates: heard by callbacks, their losses would end a training that stops early,
    and stand in its log as the model's.
    """

    @wraps(evaluate, updated=())
    def measure(*model: Any) -> Any:
        with unheard(trainer):
            found = evaluate(*model)
            return list(found) if isinstance(found, Iterator) else found

    return measure


@contextmanager
def alone(trainer: Trainer) -> Iterator[None]:
    """As `unheard`, and the trainer works as if its process were the only one.

    Its data are not split over ranks and nothing is gathered, so ranks may evaluate different models at the
    same time, and a different number of times.
    """
    accelerator = trainer.accelerator
    with ExitStack() as stack:
        stack.enter_context(shadowed(accelerator, "prepare", _first))
        if accelerator.num_processes > 1:
            for name in ("gather", "gather_for_metrics", "reduce", "pad_across_processes"):
                stack.enter_context(shadowed(accelerator, name, _first))
            stack.enter_context(shadowed(trainer.args, "average_tokens_across_devices", False))
        stack.enter_context(unheard(trainer))
        yield


@contextmanager
def unheard(trainer: Trainer) -> Iterator[None]:
    """Inside the context the trainer logs nothing and calls no callback; it forgets what it did.

    Callbacks not being called, none of them ends the training, and ``trainer.control`` is as a signal's
    handler may have set it meanwhile.
    """
    accelerator, handler, history = trainer.accelerator, trainer.callback_handler, trainer.state.log_history
    with ExitStack() as stack:
        stack.callback(history.__delitem__, slice(len(history), None))
        for event in EVENTS:
            stack.enter_context(shadowed(handler, event, _control))
        stack.enter_context(shadowed(handler, "eval_dataloader", handler.eval_dataloader))
        # Loaders with workers are kept by the trainer, and all that it prepares by the accelerator.
        stack.enter_context(shadowed(trainer, "_eval_dataloaders", {}))
        stack.enter_context(shadowed(accelerator, "_dataloaders", list(accelerator._dataloaders)))
        # A collator may draw (masks) from a generator of its own, which training shares.
        data = trainer.eval_dataset
        several = data.values() if isinstance(data, dict) else [data]
        stack.enter_context(kept([trainer.data_collator, *several]))
        stack.enter_context(shadowed(trainer, "data_collator", apart(trainer.data_collator)))
        stack.enter_context(shadowed(trainer, "log", _nothing))  # a `compute_loss` may log its parts
        if METRICS in vars(trainer):
            stack.enter_context(shadowed(trainer, METRICS, deepcopy(vars(trainer)[METRICS])))
        stack.enter_context(_averaged(trainer.optimizer))
        yield


@contextmanager
def _averaged(optimizer: Any) -> Iterator[None]:
    """The weights that an optimizer without a schedule evaluates, as ``trainer.evaluate()`` has it change to.

    It trains others, and going there and back rounds; so they are put back, and what it notes of where it is.
    """
    inner = getattr(optimizer, "optimizer", optimizer)  # Accelerate's wrapper
    if not (callable(getattr(inner, "eval", None)) and callable(getattr(inner, "train", None))):
        yield
        return
    groups, own = [dict(group) for group in inner.param_groups], dict(vars(inner))
    weights = [weight for group in groups for weight in group["params"]]
    values = [weight.detach().to("cpu", copy=True) for weight in weights]
    try:
        inner.eval()
        yield
    finally:
        with torch.no_grad():
            for weight, value in zip(weights, values, strict=True):
                weight.copy_(value)
        vars(inner).update(own)
        for group, before in zip(inner.param_groups, groups, strict=True):
            group.update(before)


@contextmanager
def shadowed(owner: object, name: str, value: Any | Callable[..., Any]) -> Iterator[None]:
    """``owner.name`` is ``value`` inside the context; on the instance only, and taken away however it ends.

    Example:
        >>> class Box:
        ...     held = 1
        >>> box = Box()
        >>> with shadowed(box, "held", 2):
        ...     box.held
        2
        >>> box.held, vars(box)
        (1, {})
    """
    attributes = vars(owner)
    before = {name: attributes[name]} if name in attributes else {}
    attributes[name] = value
    try:
        yield
    finally:
        attributes.pop(name, None)
        attributes.update(before)


def _nothing(*_: Any, **__: Any) -> None:
    return None


def _control(args: Any, state: Any, control: Any, *_: Any, **__: Any) -> Any:  # noqa: ARG001 - an event's
    return control


def _first(first: Any, *_: Any, **__: Any) -> Any:
    return first
