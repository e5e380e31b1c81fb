"""One experiment, many runs: every combination of the grid, with every seed."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product
from typing import Any

from dynaquant_core.experiments.config.experiment import Experiment, validate
from dynaquant_core.experiments.config.source import set_dotted

__all__ = ["expand"]


def expand(experiment: Experiment) -> list[Experiment]:
    """The runs of an experiment, in order: the grid's last key varies fastest, then the seed.

    A grid that is a list gives the runs of its first mapping, then those of the next; a combination that
    an earlier mapping gave already is not run again.  Each run is an `Experiment` of its own: one seed, no
    grid.

    Raises:
        ConfigError: a combination is not valid.
    """
    crossings = experiment.grid if isinstance(experiment.grid, list) else [experiment.grid]
    runs: list[Experiment] = []
    for crossing in crossings:
        runs += [run for run in _crossed(experiment, crossing) if run not in runs]
    return runs


def _crossed(experiment: Experiment, crossing: Mapping[str, list[Any]]) -> list[Experiment]:
    base = experiment.as_dict() | {"grid": {}}
    seeds = experiment.seeds or [experiment.seed]
    runs = []
    for values in product(*crossing.values()):
        data = base
        for key, value in zip(crossing, values, strict=True):
            data = set_dotted(data, key, value)
        chosen = [data["seed"]] if "seed" in crossing else seeds
        where = ", ".join(f"{key}={value}" for key, value in zip(crossing, values, strict=True))
        runs += [validate(set_dotted(data, "seed", seed), f"grid {where}".strip()) for seed in chosen]
    return runs
