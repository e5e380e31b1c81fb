"""When the Trainer saves next, as far as it can be foreseen."""

from __future__ import annotations

from collections.abc import Sized
from typing import Any

from transformers import TrainerState, TrainingArguments
from transformers.trainer_utils import IntervalStrategy, SaveStrategy

__all__ = ["steps_an_epoch", "steps_left"]


def steps_an_epoch(args: TrainingArguments, loader: Any) -> int | None:
    """Optimizer steps in an epoch; None where the loader does not know its length."""
    try:
        batches = len(loader) if isinstance(loader, Sized) else 0
    except TypeError:  # a loader over an iterable dataset has a length that raises
        batches = 0
    return max(-(-batches // args.gradient_accumulation_steps), 1) if batches else None


def steps_left(args: TrainingArguments, state: TrainerState, epoch: int | None) -> int | None:
    """Optimizer steps from here until a save is due, counting the one that saves; None: not foreseeable.

    With ``save_strategy="best"`` it is the next evaluation, after which the Trainer may save.

    Args:
        args: of the Trainer.
        state: of the Trainer, between two steps.
        epoch: optimizer steps in an epoch, or None.
    """
    due = {
        SaveStrategy.STEPS: lambda: _until(state.global_step, state.save_steps),
        SaveStrategy.EPOCH: lambda: _until(state.global_step, epoch),
        SaveStrategy.BEST: lambda: _until_evaluation(args, state, epoch),
    }.get(args.save_strategy)
    if due is None:
        return None
    end = state.max_steps - state.global_step  # the Trainer also saves when it is done
    steps = due()
    return int(end if steps is None else min(steps, end))


def _until_evaluation(args: TrainingArguments, state: TrainerState, epoch: int | None) -> int | None:
    by_steps = args.eval_strategy == IntervalStrategy.STEPS
    return _until(state.global_step, state.eval_steps if by_steps else epoch)


def _until(done: int, interval: float | None) -> int | None:
    return int(interval - done % interval) if interval else None
