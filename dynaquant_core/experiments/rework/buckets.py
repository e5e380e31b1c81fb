"""How much the loss depends on each bucket of a change: the experiment behind LC-Checkpoint's priorities.

arXiv 2009.13003 (our reading): with u the parameters after some iterations and d their change over m more,
cut into buckets of one sign and exponent, ``error_i = |L(u + d without bucket i) - L(u + d)| / |L(u + d) -
L(u)|``, the loss on the search set.  Buffers (statistics of a batch norm) are no part of d: L(u) has those
of u, the others those of u + d.  Large exponents matter most, so that they are kept first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from dynaquant_core.errors import ExperimentError
from dynaquant_core.experiments.job import Job
from dynaquant_core.experiments.life import mean, note, note_start, say
from dynaquant_core.experiments.trainer import Trainer

__all__ = ["Buckets", "bucket_errors", "bucket_words"]

#: A bit pattern without its mantissa is a sign and an exponent; float32.
MANTISSA = 23


def bucket_words(change: NDArray[np.float32]) -> NDArray[np.int64]:
    """The bucket of each value: 256 for a negative sign, plus the exponent's field; -1 for zeros.

    Args:
        change: float32[n].

    Example:
        >>> bucket_words(np.float32([1.0, -1.5, 0.5, 0.0, -0.0])).tolist()
        [127, 383, 126, -1, -1]
    """
    words = np.ascontiguousarray(change).view(np.uint32) >> np.uint32(MANTISSA)
    return np.where(change == 0, -1, words.astype(np.int64))


def bucket_errors(
    trainer: Trainer, before: Mapping[str, Tensor], after: Mapping[str, Tensor]
) -> list[dict[str, Any]]:
    """The error of each bucket of a change, from the largest exponent on.

    Args:
        trainer: its data, and a model to try them in; the model itself is left as it was.
        before: the model's tensors as the change began, by name: all parameters, float32, and buffers.
        after: as it ended.

    Returns:
        ``exponent`` (a value is 1 to 2 times two to it), ``sign``, ``count`` and ``error``, None where the
        loss did not change.
    """
    model = trainer.reader()
    names = [name for name, _ in model.named_parameters()]
    start, end = (_vector([state[name] for name in names]) for state in (before, after))
    change = end - start
    buckets = bucket_words(change)
    base, reached = _loss(trainer, model, before, start), _loss(trainer, model, after, end)
    found = []
    for bucket in sorted(set(buckets.tolist()) - {-1}, key=lambda word: (-(word & 255), word)):
        without = np.where(buckets == bucket, start, end)
        moved = abs(_loss(trainer, model, after, without) - reached)
        error = moved / abs(reached - base) if reached != base else None
        told = {"exponent": (bucket & 255) - 127, "sign": -1 if bucket > 255 else 1}
        found.append({**told, "count": int((buckets == bucket).sum()), "error": error})
    return found


@final
class Buckets:
    """Trains, and measures the buckets of its changes; writes events ``buckets`` and ``final``.

    Args:
        job: of a run with a section ``buckets``.

    Raises:
        ExperimentError: it has none.
    """

    def __init__(self, job: Job) -> None:
        section = job.experiment.buckets
        if section is None:
            raise ExperimentError(f"{job.folder}: the job has no section buckets.")
        self._job, self._section = job, section
        self._trainer = Trainer(job.experiment)

    def run(self) -> None:
        """Keeps parameters and buffers where changes begin and end, then measures."""
        section, trainer = self._section, self._trainer
        self._job.diary.unlink(missing_ok=True)  # what was cut short begins anew
        note_start(self._job)
        spans = [section.every * number for number in range(1, section.count + 1)]
        wanted = {0, *section.after, *(start + span for start in section.after for span in spans)}
        kept = {}
        for step in range(max(wanted) + 1):
            if step in wanted:
                kept[step] = _tensors(trainer.model)
            if step < max(wanted):
                say({"event": "progress", "step": step + 1, "loss": trainer.advance()})
        for start in section.after:
            for span in spans:
                found = bucket_errors(trainer, kept[start], kept[start + span])
                note(self._job, "buckets", after=start, iterations=span, buckets=found)
        count = sum(parameter.numel() for parameter in trainer.model.parameters())
        facts = {"weights_digest": trainer.digest(), "parameters": count, "seconds": trainer.seconds}
        note(self._job, "final", step=trainer.step, value=None, **facts)


def _tensors(model: nn.Module) -> dict[str, Tensor]:
    """Copies of its parameters and buffers, by name."""
    own = [*model.named_parameters(), *model.named_buffers()]
    return {name: tensor.detach().clone() for name, tensor in own}


def _vector(parameters: Sequence[Tensor]) -> NDArray[np.float32]:
    joined: NDArray[np.float32] = torch.cat([own.detach().reshape(-1).cpu() for own in parameters]).numpy()
    return joined


def _loss(
    trainer: Trainer, model: nn.Module, state: Mapping[str, Tensor], vector: NDArray[np.float32]
) -> float:
    """Of these parameters beside the buffers of a state."""
    parts = torch.split(torch.from_numpy(vector), [own.numel() for own in model.parameters()])
    with torch.no_grad():
        for own, part in zip(model.parameters(), parts, strict=True):
            own.copy_(part.reshape(own.shape))
        for name, buffer in model.named_buffers():
            buffer.copy_(state[name])
    return mean(trainer.quality(trainer.data.search, model))
