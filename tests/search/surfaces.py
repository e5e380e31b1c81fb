"""Surfaces to search: what a candidate would cost and how much worse it would be, without any model."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from itertools import product
from typing import Any

import numpy as np

from dynaquant_core.methods.base import Space
from dynaquant_core.search import Quality
from dynaquant_core.search.grid import Grid, Place
from dynaquant_core.search.quality import Goal
from dynaquant_core.search.trials import Trials

AXES = {
    "bins": (32, 16, 12, 8, 6, 4),
    "protect": (0.01, 0.005, 0.0005),
    "prune": (0.0, 0.1, 0.2, 0.3, 0.4, 0.5),
}
METRICS = {"metric": ("magnitude", "sensitivity")}
EMBEDDING = {"embedding": (32, 16)}
BEYOND = ({"bins": 48}, {"bins": 64}, {"bins": "bf16"}, {"bins": "exact"})


def cube(*, metrics: bool = True, embedding: bool = False) -> Space:
    """The paper's cube of 216 (or its half without gradients), with or without the embedding axis."""
    variants = METRICS if metrics else {"metric": ("magnitude",)}
    return Space(dict, AXES, variants, EMBEDDING if embedding else {}, BEYOND, {"bins": 32})


def places(space: Space) -> list[Place]:
    """Every place of a space."""
    grid = Grid(space)
    return [Place(steps, v) for v in grid.variants for steps in product(*map(range, grid.shape))]


@dataclass
class FakeDraft:
    """A draft that only has a size."""

    config: dict[str, Any]
    size: int
    is_key: bool = True


@dataclass
class Surface:
    """Tables of degradation and bytes over a space; counts what it is asked for."""

    space: Space
    worse: dict[Place, float]
    size: dict[Place, int]
    threshold: float = 0.01
    beyond_worse: tuple[float, ...] = (0.0, 0.0, 0.0, 0.0)
    measured: list[dict[str, Any]] = field(default_factory=list)
    sized: list[dict[str, Any]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.grid = Grid(self.space)

    def draft(self, config: dict[str, Any]) -> FakeDraft:
        self.sized.append(config)
        place = None if config in BEYOND else self.grid.locate(config)
        return FakeDraft(config, 10**9 if place is None else self.size[place])

    def measure(self, draft: FakeDraft) -> Quality:
        self.measured.append(draft.config)
        if draft.config in BEYOND:
            return Quality((2.0 * (1 + self.beyond_worse[BEYOND.index(draft.config)]),))
        place = self.grid.locate(draft.config)
        assert place is not None
        return Quality((2.0 * (1 + self.worse[place]),))

    @property
    def reference(self) -> Quality:
        return Quality((2.0,))

    def trials(self) -> Trials:
        return Trials(self.grid, self.draft, self.measure, Goal(self.reference, self.threshold, "min"))

    def meets(self, place: Place) -> bool:
        return self.trials().goal.met(self.trials().goal.judge(Quality((2.0 * (1 + self.worse[place]),))))

    def optimum(self) -> int | None:
        """Bytes of the smallest place that meets the threshold."""
        return min((size for place, size in self.size.items() if self.meets(place)), default=None)


def rising(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """A random table that rises along every axis, of one of three characters."""
    kind = rng.integers(3)
    if kind == 0:  # every axis acts on its own, with slopes of its own
        slopes = [np.cumsum(rng.exponential(size=n) * rng.exponential()) for n in shape]
        return sum(np.ix_(*slopes))  # type: ignore[arg-type]
    if kind == 1:  # slopes that differ from place to place
        table = rng.exponential(size=shape)
        for axis in range(len(shape)):
            table = np.cumsum(table, axis)
        return table
    table = rng.random(shape)  # plateaus and cliffs
    for axis in range(len(shape)):
        table = np.maximum.accumulate(table, axis)
    return table + 1e-6 * sum(np.indices(shape))


def random_surface(seed: int) -> Surface:
    """A monotone surface over the cube of 216; the share of places that meet the threshold is random."""
    rng = np.random.default_rng(seed)
    space = cube()
    shape = Grid(space).shape
    worse, size = rising(rng, shape), rising(rng, shape)
    tables = []
    for metric in range(2):
        own = worse * (1 + 0.3 * metric * rng.random()) if rng.random() < 0.7 else rising(rng, shape)
        bytes_ = size.max() * 1.2 - size + 0.05 * metric * rng.random()
        tables.append((own, 1e6 * bytes_))
    threshold = float(np.quantile(tables[0][0], rng.uniform(0.02, 0.98)))
    scale = 0.01 / threshold  # so that the threshold is 1%
    return Surface(
        space,
        {place: float(tables[place.variant[0]][0][place.steps]) * scale for place in places(space)},
        {place: int(tables[place.variant[0]][1][place.steps]) for place in places(space)},
    )


class Drifting:
    """A run: degradation as a sum of errors that grow or shrink as training goes on; sizes of deltas.

    A change of bins between checkpoints costs extra bytes, so sizes are not quite monotone.
    """

    def __init__(self, seed: int, *, growth: tuple[float, float] = (0.9, 1.5)) -> None:
        self.rng = np.random.default_rng(seed)
        draw = self.rng.uniform
        self.space = cube(embedding=True)
        self.level, self.growth, self.jitter = draw(0.2, 2), draw(*growth), draw(0, 0.15)
        self.bins_error, self.prune_error, self.prune_power = draw(0.1, 1), draw(0.002, 0.05), draw(1, 3)
        self.sensitivity, self.change_cost = draw(0.6, 1.6), draw(0, 0.5)
        self.moving = draw(0.2, 0.6)
        self.last_bins: Any = None

    def step(self, chosen: dict[str, Any]) -> None:
        """Training goes on to the next checkpoint."""
        self.last_bins = chosen["bins"]
        self.level *= self.growth * math.exp(self.jitter * self.rng.normal())
        self.moving *= 0.9

    def worse(self, config: dict[str, Any]) -> float:
        """Relative degradation of a configuration at this checkpoint."""
        if "prune" not in config:
            return self.level * {48: 1e-4, 64: 5e-5, "bf16": 1e-6, "exact": 0.0}[config["bins"]]
        error = self.bins_error / config["bins"] ** 2
        error *= 1 + {0.01: 0.0, 0.005: 0.15, 0.0005: 0.5}[config["protect"]]
        prune = self.prune_error * config["prune"] ** self.prune_power
        prune *= self.sensitivity if config["metric"] == "sensitivity" else 1.0
        return self.level * (error + prune + 0.03 / config["embedding"] ** 2)

    def size(self, config: dict[str, Any]) -> int:
        """Bytes of a configuration's delta."""
        if "prune" not in config:
            return {48: 8, 64: 9, "bf16": 20, "exact": 40}[config["bins"]] * 10**6
        bits = (0.8 * math.log2(config["bins"]) * (1 - config["prune"]) + 0.3) * self.moving
        bits *= 1 if config["bins"] == self.last_bins else 1 + self.change_cost
        return int(1e6 * (bits + 8 * config["protect"] + 0.1 * self.moving * math.log2(config["embedding"])))

    def draft(self, config: dict[str, Any]) -> FakeDraft:
        return FakeDraft(config, self.size(config))

    def measure(self, draft: FakeDraft) -> Quality:
        return Quality((2.0 * (1 + self.worse(draft.config)),))

    def best_size(self, threshold: float) -> int | None:
        """Bytes of the smallest configuration of the space that meets the threshold."""
        configs = [Grid(self.space).config(place) for place in places(self.space)]
        return min((self.size(c) for c in configs if self.worse(c) <= threshold), default=None)
