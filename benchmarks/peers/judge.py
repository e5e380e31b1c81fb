"""What a reader's weights are worth, with the recording's own model and data."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import cached_property
from typing import Any, Literal

from coder import Meets, Tensors

from dynaquant_core.errors import ExperimentError
from dynaquant_core.experiments.config.experiment import Experiment
from dynaquant_core.experiments.measures import MovementWatch, standard_error
from dynaquant_core.experiments.trainer import Trainer
from dynaquant_core.search.quality import Degradation, Quality, degradation
from dynaquant_core.state.roles import is_quantisable

__all__ = ["Judge", "Reference", "within_movement", "within_threshold"]


class Reference:
    """Quality of the true weights of one checkpoint, each set measured when it is first asked for.

    Args:
        judge: who measures.
        weights: the true ones.
    """

    def __init__(self, judge: Judge, weights: Tensors) -> None:
        self._judge, self._weights = judge, weights

    @cached_property
    def search(self) -> Quality:
        """One value a batch."""
        return self._judge.quality(self._weights, "search")

    @cached_property
    def heldout(self) -> Quality:
        """One value a batch."""
        return self._judge.quality(self._weights, "heldout")


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

    def quality(self, weights: Tensors, part: Literal["search", "heldout"]) -> Quality:
        """What weights are worth on the set that a search looks at, or on that which only the report does."""
        self._load(weights)
        return Quality.of(self._trainer.quality(getattr(self._trainer.data, part), self._reader))

    def on_search(self, reference: Reference, weights: Tensors) -> Degradation:
        """By how much weights are worse on the search set."""
        return degradation(reference.search, self.quality(weights, "search"), self._mode)

    def on_heldout(self, reference: Reference, weights: Tensors) -> Degradation:
        """The same on the held-out set."""
        return degradation(reference.heldout, self.quality(weights, "heldout"), self._mode)

    def entry(
        self, reference: Reference, weights: Tensors, threshold: float, *, same: bool
    ) -> dict[str, Any]:
        """``degradation`` and ``met`` of a checkpoint, as in results.json; ``same``: every bit came back."""
        if same:
            error = standard_error(Degradation(0.0), reference.heldout)
            return {"degradation": {"search": 0.0, "heldout": 0.0, "heldout_se": error}, "met": True}
        search, heldout = self.on_search(reference, weights), self.on_heldout(reference, weights)
        figures = {"search": search.mean, "heldout": heldout.mean}
        finite = {name: value if math.isfinite(value) else None for name, value in figures.items()}
        finite["heldout_se"] = standard_error(heldout, reference.heldout)
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
