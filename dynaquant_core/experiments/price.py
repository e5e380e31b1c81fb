"""The price of restores: what the runs of one setting cost together, seeds averaged.

The law (ours, docs/restoring.md): a restore loses the movement of training that its checkpoint does not
hold.  The final loss grows by about a tenth for each unit of ``stale x interval`` summed over the restores,
where the interval is the share of the training over which that movement was made.
"""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dynaquant_core.errors import DynaQuantError
from dynaquant_core.experiments.config.systems import TwoBitSystem
from dynaquant_core.experiments.restores import restored, unplanned
from dynaquant_core.methods.registry import resolve_method

__all__ = [
    "LAW",
    "LAW_METRIC",
    "LAW_RANGE",
    "Figure",
    "Price",
    "held_label",
    "kills_label",
    "method_label",
    "prices",
    "replicas_label",
    "training_label",
    "uninterrupted",
    "varied_label",
]

#: Final cost per unit of the sum of stale x interval, and the range in which it was measured.
LAW = 0.10
LAW_RANGE = (0.05, 0.15)

#: The final metric that it is about; of any other it says nothing.
LAW_METRIC = "loss"

#: Sections that decide about the uninterrupted run.
TRAINING = ("model", "data", "optimizer", "evaluate", "pretrained", "steps")

#: Of two bits, where its options do not say.
REPLICAS = TwoBitSystem.model_fields["replicas"].default

Run = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Figure:
    """A mean and its spread.

    Args:
        mean: over seeds.
        spread: standard deviation over seeds; None with one seed.
    """

    mean: float
    spread: float | None = None

    @classmethod
    def of(cls, values: Iterable[float | None]) -> Figure | None:
        """Of the values that are known; None where none is.  Infinite ones have no spread.

        Example:
            >>> Figure.of([1.0, None, 3.0])
            Figure(mean=2.0, spread=1.4142135623730951)
        """
        known = [value for value in values if value is not None]
        if not known:
            return None
        spread = len(known) > 1 and all(map(math.isfinite, known))
        return cls(statistics.fmean(known), statistics.stdev(known) if spread else None)


@dataclass(frozen=True, slots=True)
class Price:
    """Runs that differ in their seed only.

    Args:
        model, parameters, data, device: what was trained, and where.
        method: its name, the options that are not as they come, and what else tells these runs from others.
        moments: policy for the optimizer's moments.
        threshold: of the checkpoints.
        interval: steps between checkpoints, a share of the training.
        restores: how many, with those that were not planned.
        seeds: of the runs.
        ratio: of the weights, key checkpoints and saves after a restore included.
        stale, noise, er: of the checkpoints restored from; without restores of all.
        lost: sum over restores of stale x interval.
        cost: relative degradation of the final held-out metric.
        train_cost: of the mean training loss over the last interval.
        floor: standard deviation of the uninterrupted runs' final metric over seeds, relative to its mean.
        metric: the final one.
        unplanned: how many of the restores an interruption made, which no failure was planned for.
    """

    model: str
    parameters: int
    data: str
    device: str
    method: str
    moments: str
    threshold: float
    interval: float
    restores: int
    seeds: list[int]
    ratio: Figure | None
    stale: Figure | None
    noise: Figure | None
    er: Figure | None
    lost: Figure | None
    cost: Figure | None
    train_cost: Figure | None
    floor: float | None
    metric: str = LAW_METRIC
    unplanned: int = 0

    @property
    def kills(self) -> str:
        """How often the runs were restored, and how often nobody had planned it."""
        return kills_label(self.restores - self.unplanned, self.unplanned)


def prices(results: Mapping[str, Any]) -> list[Price]:
    """One entry for each setting of a results.json, in its order.

    Runs that were interrupted have entries of their own: they were restored, whatever was planned.

    Args:
        results: what the file holds.
    """
    groups: defaultdict[tuple[Any, ...], list[Run]] = defaultdict(list)
    for run in results["runs"]:
        key = ("model", "parameters", "data", "moments", "max_chain", "threshold", "interval_steps", "steps")
        setting = (_label(run), run["final"]["metric"], len(run["failures"]), unplanned(run))
        device = _device(run, results["environment"])
        groups[(device, *(run.get(name) for name in key), *setting)].append(run)
    return [_price(runs, results["runs"], key[0]) for key, runs in groups.items()]


def _label(run: Run) -> str:
    """A method and the settings of its run, but for the interval, which a price names itself."""
    varied = {key: value for key, value in run.get("varied", {}).items() if key != "checkpoint_every"}
    return method_label(run) + held_label({**run, "varied": varied})


def _price(runs: Sequence[Run], everything: Sequence[Run], device: str) -> Price:
    first = runs[0]
    alike = [run for run in everything if _training(run) == _training(first)]
    return Price(
        model=first["model"],
        parameters=first["parameters"],
        data=first["data"],
        device=device,
        method=_label(first),
        moments=first["moments"],
        threshold=first["threshold"],
        interval=first["interval_steps"] / first["steps"],
        restores=len(first["failures"]) + unplanned(first),
        seeds=sorted(run["seed"] for run in runs),
        ratio=Figure.of(run["totals"]["weights_ratio"] for run in runs),
        stale=Figure.of(movement(run, "stale") for run in runs),
        noise=Figure.of(movement(run, "noise") for run in runs),
        er=Figure.of(movement(run, "er") for run in runs),
        lost=Figure.of(run["stale_times_interval"] for run in runs),
        cost=Figure.of(run["final"]["relative_degradation"] for run in runs),
        train_cost=Figure.of(run["final"]["train_relative_degradation"] for run in runs),
        floor=uninterrupted(alike)[1],
        metric=first["final"]["metric"],
        unplanned=unplanned(first),
    )


def uninterrupted(runs: Sequence[Run]) -> tuple[Figure | None, float | None]:
    """The final metric of the uninterrupted runs over their seeds, and its spread relative to its mean."""
    values = {run["seed"]: run["final"]["baseline"] for run in runs}
    figure = Figure.of(values.values())
    if figure is None or figure.spread is None or not figure.mean:
        return figure, None
    return figure, figure.spread / abs(figure.mean)


def movement(run: Run, name: str) -> float | None:
    """Mean of stale, noise or er over the checkpoints that were restored from, or over all where none was."""
    entries = restored(run) or run["checkpoints"]
    known = [(entry["movement_lost"] or {}).get(name) for entry in entries]
    figure = Figure.of(known)
    return None if figure is None else figure.mean


def method_label(run: Run) -> str:
    """A method's name, and its options as far as they are not what the name (and the profile) bring along.

    Example:
        >>> method_label({"method": "dynaquant", "options": {"coder": "huffman"}})
        'dynaquant coder=huffman'
        >>> method_label({"method": "lattice", "options": {"max_step": None}})
        'lattice max_step=None'
    """
    name, options = run["method"], run["options"]
    profile = {"profile": options["profile"]} if options.get("profile") else {}
    try:
        usual = resolve_method({"name": name, **profile}).options()
    except DynaQuantError:  # a method that is not installed here
        usual = {}
    changed = {key: value for key, value in options.items() if key not in usual or usual[key] != value}
    return " ".join([name, *(f"{key}={value}" for key, value in (profile | changed).items())])


def kills_label(planned: int, unplanned: int) -> str:
    """How often a run was restored: as planned, and beyond that.

    Example:
        >>> kills_label(2, 0), kills_label(0, 1)
        ('2', '0 (+1 unplanned)')
    """
    return f"{planned} (+{unplanned} unplanned)" if unplanned else str(planned)


def held_label(run: Run) -> str:
    """What a run's search is held to, and the settings that tell it from others of its model.

    Example:
        >>> held_label({"fix": {"bins": 8}, "varied": {"optimizer.lr": 0.01}})
        ', bins 8, optimizer.lr 0.01'
    """
    told = "".join(f", {name} {value}" for name, value in run.get("fix", {}).items())
    told += "" if run.get("search", True) is True else f", search {run['search']}"
    return told + varied_label(run)


def varied_label(run: Run) -> str:
    """The settings that tell a run from others of its model."""
    return "".join(f", {key} {value}" for key, value in run.get("varied", {}).items())


def training_label(run: Run) -> str:
    """The same settings, as far as they decide about the uninterrupted run.

    Example:
        >>> training_label({"varied": {"optimizer.lr": 0.01, "exact": ["lm_head"]}})
        ', optimizer.lr 0.01'
    """
    known = run.get("varied", {})
    deciding = {key: known[key] for key in known if key.partition(".")[0] in TRAINING}
    return varied_label({"varied": deciding}) + replicas_label(run)


def replicas_label(run: Run) -> str:
    """How many replicas the uninterrupted run is of, where they are several: in two bits' baselines.

    Example:
        >>> replicas_label({"kind": "system", "method": "two_bit", "options": {"replicas": 4}})
        ', 4 replicas'
    """
    if run.get("kind") != "system" or run["method"] != "two_bit":
        return ""
    return f", {run['options'].get('replicas', REPLICAS)} replicas"


def _training(run: Run) -> tuple[Any, ...]:
    """What decides the uninterrupted run of a seed."""
    told = ("model", "parameters", "data", "steps", "interval_steps")
    return (*(run[name] for name in told), run["final"]["metric"], training_label(run))


def _device(run: Run, environment: Mapping[str, Any]) -> str:
    """Where a run ended; of earlier versions, where the command was started last."""
    environment = next(reversed(run.get("machines", [])), environment)
    device = str(environment.get("device", "unknown"))
    return str(environment.get("processor") or device) if device == "cpu" else device
