"""What a reader's weights are worth, with the recording's own model and data."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from coder import Meets, Tensors

from dynaquant_core.errors import ExperimentError
from dynaquant_core.experiments.config.experiment import Experiment
from dynaquant_core.experiments.measures import MovementWatch
from dynaquant_core.experiments.trainer import Trainer
from dynaquant_core.search.quality import Degradation, Quality, degradation
from dynaquant_core.state.roles import is_quantisable

__all__ = ["Judge", "Reference", "within_movement", "within_threshold"]


class Reference:
    """Quality of the true weights of one checkpoint, on both evaluation sets.

    Args:
        search, heldout: one value a batch.
    """

    def __init__(self, search: list[float], heldout: list[float]) -> None:
        self.search, self.heldout = Quality.of(search), Quality.of(heldout)


class Judge:
    """The model and the evaluation sets of a recording.

    Args:
        experiment: the recorded run's settings.

    Raises:
        ExperimentError: its data is missing.
    """

    def __init__(self, experiment: Experiment) -> None:
        self._mode = experiment.evaluate.mode
        self._trainer = Trainer(experiment)
        self._reader = self._trainer.reader()
        parameters = dict(self._reader.named_parameters())
        self._needed = parameters.keys() | dict(self._reader.named_buffers()).keys()
        #: Float matrices, which all methods quantise: movement is that of these.
        self.names = [name for name, tensor in parameters.items() if is_quantisable(tensor)]
        self.parameters = sum(tensor.numel() for tensor in parameters.values())

    def reference(self, weights: Tensors) -> Reference:
        """What weights are worth that lost nothing."""
        self._load(weights)
        data = self._trainer.data
        return Reference(
            *(self._trainer.quality(batches, self._reader) for batches in (data.search, data.heldout))
        )

    def on_search(self, reference: Reference, weights: Tensors) -> Degradation:
        """By how much weights are worse on the set that a search may look at."""
        self._load(weights)
        found = self._trainer.quality(self._trainer.data.search, self._reader)
        return degradation(reference.search, Quality.of(found), self._mode)

    def on_heldout(self, reference: Reference, weights: Tensors) -> Degradation:
        """The same on the set that only the report looks at."""
        self._load(weights)
        found = self._trainer.quality(self._trainer.data.heldout, self._reader)
        return degradation(reference.heldout, Quality.of(found), self._mode)

    def entry(self, reference: Reference, weights: Tensors, threshold: float) -> dict[str, Any]:
        """``degradation`` and ``met`` of a checkpoint, as in results.json."""
        search, heldout = self.on_search(reference, weights), self.on_heldout(reference, weights)
        figures = {"search": search.mean, "heldout": heldout.mean, "heldout_se": heldout.se}
        finite = {name: value if math.isfinite(value) else None for name, value in figures.items()}
        return {"degradation": finite, "met": search.mean <= threshold}

    def watch(self, start: Tensors) -> MovementWatch:
        """Follows the movement of a run from its initial weights on."""
        return MovementWatch({name: start[name] for name in self.names}, restored=False)

    def _load(self, weights: Tensors) -> None:
        missing = sorted(self._needed - weights.keys())
        if missing:
            raise ExperimentError(f"{missing[0]} is not among the weights that were read back.")
        known = self._reader.state_dict()
        self._reader.load_state_dict(
            {name: weights[name] for name in known.keys() & weights.keys()}, strict=False
        )


def within_threshold(judge: Judge, reference: Reference, threshold: float) -> Meets:
    """Whether weights are at most ``threshold`` worse on the search set."""
    return lambda weights: judge.on_search(reference, weights).mean <= threshold


def within_movement(watch: MovementWatch, true: Tensors, limit: float, first: Meets) -> Meets:
    """Whether the error is at most ``limit`` of what moved since the last file (``er`` of `MovementWatch`).

    Args:
        watch: of the checkpoints so far.
        true: the weights of this one.
        limit: a share of squares.
        first: judges the first checkpoint, which has no file before it.
    """

    def meets(weights: Mapping[str, Any]) -> bool:
        er = watch.lost(true, weights)["er"]
        return first(weights) if er is None else er <= limit

    return meets
