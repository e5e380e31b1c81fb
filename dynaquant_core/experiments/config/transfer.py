"""The section ``pretrained``: where a fine-tuning starts."""

from __future__ import annotations

from collections.abc import Mapping

from pydantic import model_validator

from dynaquant_core.experiments.config.parts import DataSection, Evaluation, OptimizerSection
from dynaquant_core.experiments.config.section import Count, Section, Seed

__all__ = ["Pretrained", "saving_problem"]

#: Keys that say how more than the first weights are stored.
LATER = ("moments", "max_chain")


class Pretrained(Section):
    """A pre-trained model: a file of weights, or a training of its own that is recorded once.

    Args:
        source: a file of weights (.safetensors, .pt, .pth, .th, .bin): a path, tried as given and under the
            data root, or ``package:NAME/FILE``, a file inside an installed package.
        steps: of the training, where there is no ``source``.
        checkpoint_every: steps between recorded states, a divisor of ``steps``, since the fine-tuning starts
            from the last one; by default only that is recorded.
        optimizer: of the training; by default the fine-tuning's.
        seed: of the training: one for all seeds of the fine-tuning.
        data: what it was trained on, or is judged by: its search set is what the compression may look at.  By
            default the fine-tuning's.
        evaluate: the metric that the threshold is about; by default the fine-tuning's.
    """

    source: str | None = None
    steps: Count | None = None
    checkpoint_every: Count | None = None
    optimizer: OptimizerSection | None = None
    seed: Seed = 0
    data: DataSection | None = None
    evaluate: Evaluation | None = None

    @model_validator(mode="after")
    def _one_origin(self) -> Pretrained:
        if (self.source is None) == (self.steps is None):
            raise ValueError("give source (a file of weights) or steps (of a training of its own)")
        given = {"checkpoint_every": self.checkpoint_every, "optimizer": self.optimizer, "seed": self.seed}
        trains = [name for name, value in given.items() if value]
        if self.source is not None and trains:
            raise ValueError(f"{', '.join(trains)}: weights from a file are not trained again")
        every = self.checkpoint_every or 1
        if self.steps is not None and every > self.steps:
            raise ValueError(f"checkpoint_every ({every}) is over steps ({self.steps})")
        if self.steps is not None and self.steps % every:
            raise ValueError(
                f"checkpoint_every ({every}) does not divide steps ({self.steps}): the last recorded state, "
                f"which the fine-tuning starts from, would be that of step {self.steps - self.steps % every}"
            )
        return self

    @property
    def weights_alone(self) -> bool:
        """Whether it names a file of weights and nothing else."""
        return self.source is not None and self.data is None and self.evaluate is None


def saving_problem(kind: str, saving: Mapping[str, bool]) -> str | None:
    """What is wrong with how a transfer's one checkpoint is to be stored; None: nothing.

    Args:
        kind: of the experiment.
        saving: for each key of how checkpoints are stored whether it is as usual.

    Returns:
        One sentence, in the words of the YAML file.
    """
    unusual = [key for key in LATER if not saving[key]]
    if kind != "transfer" or not unusual:
        return None
    return (
        f"kind: transfer stores one checkpoint, of a model without an optimizer: {' and '.join(unusual)} "
        f"would change nothing; leave it out"
    )
