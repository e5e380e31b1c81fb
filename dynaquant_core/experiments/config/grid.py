"""One experiment, many runs: every combination of the grid, with every seed."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product
from typing import Any

from dynaquant_core.errors import ConfigError, DynaQuantError
from dynaquant_core.experiments.config.ablation import Axis
from dynaquant_core.experiments.config.experiment import Experiment, validate
from dynaquant_core.experiments.config.source import set_dotted
from dynaquant_core.experiments.config.spelling import owns_moments, resolved

__all__ = ["expand"]


def expand(experiment: Experiment) -> list[Experiment]:
    """The runs of an experiment, in order: the grid's last key varies fastest, then the seed.

    A grid that is a list gives the runs of its first mapping, then those of the next.  A run that is there
    already, from a value or a seed that is named twice, a method that is spelled in two ways, moments that
    the method stores in a way of its own or an earlier mapping, is not run again: it would count as one more
    seed.  Each run is an `Experiment` of its own: one seed, no grid, and of an axis its own value, which
    varies faster than the grid.

    Raises:
        ConfigError: a combination is not valid, the axis is part of the grid, or no run takes one of seeds.
    """
    crossings = experiment.grid if isinstance(experiment.grid, list) else [experiment.grid]
    if experiment.seeds is not None and all("seed" in crossing for crossing in crossings):
        raise ConfigError(
            "grid.seed: every run has a seed of the grid, so seeds would change nothing; drop one."
        )
    runs: list[Experiment] = []
    told: list[dict[str, Any]] = []
    for crossing in crossings:
        for run in _crossed(experiment, crossing):
            spelled = run.as_dict() | {"method": _resolved(run.method)}
            if owns_moments(run.method):
                spelled.pop("moments")
            if spelled not in told:
                told.append(spelled)
                runs.append(run)
    return runs


def _resolved(method: Any) -> Any:
    """A method's name and options, however it was spelled; as it is where there is none like it."""
    try:
        return resolved(method)
    except DynaQuantError:  # who runs it says what is wrong
        return method


def _crossed(experiment: Experiment, crossing: Mapping[str, list[Any]]) -> list[Experiment]:
    base = experiment.as_dict() | {"grid": {}}
    seeds = experiment.seeds or [experiment.seed]
    axis = experiment.axis
    varied = crossing if axis is None else _with_axis(axis, crossing)
    runs = []
    for values in product(*varied.values()):
        data = base
        for key, value in sorted(zip(varied, values, strict=True), key=_depth):  # a section, then its keys
            data = set_dotted(data, key, value, where="axis" if axis and key == axis.key else "grid")
        if axis is not None:
            data = data | {"axis": {"key": axis.key, "values": [values[-1]]}}
        chosen = [data["seed"]] if "seed" in crossing else seeds
        where = ", ".join(f"{key}={value}" for key, value in zip(varied, values, strict=True))
        what = "grid" if crossing or axis is None else "axis"
        runs += [validate(set_dotted(data, "seed", seed), f"{what} {where}".strip()) for seed in chosen]
    return runs


def _depth(varied: tuple[str, Any]) -> int:
    return varied[0].count(".")


def _with_axis(axis: Axis, crossing: Mapping[str, list[Any]]) -> dict[str, list[Any]]:
    """The grid with the axis as its last key."""
    for key in crossing:
        if key == axis.key or key.startswith(f"{axis.key}."):
            raise ConfigError(f"axis: {axis.key!r} is set by the grid's {key!r} too; vary it in one of them.")
    return {**crossing, axis.key: axis.values}
