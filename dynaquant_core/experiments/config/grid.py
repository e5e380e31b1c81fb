"""One experiment, many runs: every combination of the grid, with every seed."""

from __future__ import annotations

from itertools import product

from dynaquant_core.experiments.config.experiment import Experiment, validate
from dynaquant_core.experiments.config.source import set_dotted

__all__ = ["expand"]


def expand(experiment: Experiment) -> list[Experiment]:
    """The runs of an experiment, in order: the grid's last key varies fastest, then the seed.

    Each run is an `Experiment` of its own: one seed, no grid.

    Raises:
        ConfigError: a combination is not valid.
    """
    base = experiment.as_dict() | {"grid": {}}
    seeds = experiment.seeds or [experiment.seed]
    runs = []
    for values in product(*experiment.grid.values()):
        data = base
        for key, value in zip(experiment.grid, values, strict=True):
            data = set_dotted(data, key, value)
        chosen = [data["seed"]] if "seed" in experiment.grid else seeds
        where = ", ".join(f"{key}={value}" for key, value in zip(experiment.grid, values, strict=True))
        runs += [validate(set_dotted(data, "seed", seed), f"grid {where}".strip()) for seed in chosen]
    return runs
