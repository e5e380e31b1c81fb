"""What a threshold buys when a run will be restored so many times: measured figures, and the law of restores.

Figures come with the package, each with the model and the device it was measured on, or from a user's own
results.json.  Nothing is interpolated: what is shown is the nearest setting that was measured.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from dynaquant_core.errors import ConfigError, ExperimentError
from dynaquant_core.experiments.figures import kind_of, saving
from dynaquant_core.experiments.price import LAW, LAW_METRIC, LAW_RANGE, Price, prices

__all__ = ["FAR", "SHIPPED", "Option", "Wish", "nearest_options", "read_figures", "read_prices"]

#: Figures that come with the package; benchmarks/plan_table.py writes them.
SHIPPED = Path(__file__).with_name("plan_figures.json")

#: Shortest interval that is planned: a checkpoint after each of 10**12 steps.
SHORTEST = 1e-12

#: By how many times an interval, or one more than the restores, may be off before a figure says little.
FAR = 2.5

#: Bytes of a weight that is not compressed.
WEIGHT_BYTES = 4


@dataclass(frozen=True, slots=True)
class Wish:
    """What a user plans.

    Args:
        restores: how often the run will be restored.
        interval: steps between checkpoints, a share of the training.
        threshold: allowed degradation of a checkpoint; None: all that were measured.
        parameters: of the model, for bytes; None: no bytes.

    Raises:
        ConfigError: a value is out of range, or there are as many restores as checkpoints.

    Example:
        >>> Wish(10, 0.02).lost
        0.899
        >>> Wish(0, 0.02).lost
        0.0
    """

    restores: int
    interval: float
    threshold: float | None = None
    parameters: int | None = None

    def __post_init__(self) -> None:
        if self.restores < 0:
            raise ConfigError(f"restores must be 0 or more, got {self.restores}.")
        if not SHORTEST <= self.interval < 1:
            raise ConfigError(
                f"interval must be a share of the training between 0 and 1, such as 0.1 or 2%, and at least "
                f"{SHORTEST:g}, got {self.interval:g}."
            )
        if self.restores >= 1 / self.interval:
            most = math.ceil(1 / self.interval - 1e-9) - 1
            raise ConfigError(
                f"{self.restores} restores need more than {self.restores} checkpoint intervals, but an "
                f"interval of {self.interval:.1%} gives {1 / self.interval:.3g}; plan {most} restores, or "
                f"an interval below 1/{self.restores} of the training."
            )
        if self.threshold is not None and not 0 < self.threshold < 1:
            raise ConfigError(
                f"threshold must be a share between 0 and 1, such as 0.01 or 1%, got {self.threshold:g}."
            )
        if self.parameters is not None and self.parameters < 1:
            raise ConfigError(f"params must be 1 or more, got {self.parameters}.")

    @property
    def checkpoints(self) -> int:
        """How many the run will write, saves after a restore not counted again."""
        return int(1 / self.interval + 1e-9)

    @property
    def lost(self) -> float:
        """Sum over restores of the interval: the share of training that a stale of 1 would lose.

        Restores are spread over the run, each from the checkpoint before the middle of an interval; what lies
        between two of them adds up to the place of the last.
        """
        if not self.restores:
            return 0.0
        last = self.restores / (self.restores + 1) - self.interval / 2
        return round(max(self.interval, last), 3)


@dataclass(frozen=True, slots=True)
class Option:
    """One way to save, as it was measured nearest to a wish.

    Args:
        measured: the figures.
        cost: final cost that the law expects of the wish, a share; None where stale is not known, or where
            the final metric is none that the law is about.
        cost_range: the same with the law's lowest and highest factor.
        stored: bytes of all checkpoints' weights; None without a number of parameters.
        far: whether what was measured has an interval or a number of restores over `FAR` times off the wish.
    """

    measured: Price
    cost: float | None
    cost_range: tuple[float, float] | None
    stored: float | None
    far: bool = False


#: Figures as plain data, checked for their types.
FIGURES = TypeAdapter(list[Price])


def nearest_options(wish: Wish, figures: Sequence[Price]) -> list[Option]:
    """For each model, method and threshold the nearest setting that was measured, and what it means here.

    On whichever device it was: they differ in how they round, and seeds differ by more.

    Raises:
        ExperimentError: there are no figures.
    """
    if not figures:
        raise ExperimentError("there are no figures to plan with; give a results.json with --results.")
    nearest: dict[tuple[Any, ...], Price] = {}
    for entry in figures:
        where = (entry.model, entry.parameters, entry.data)
        key = (*where, entry.method, entry.moments, entry.threshold if wish.threshold is None else None)
        known = nearest.get(key)
        if known is None or _distance(wish, entry) < _distance(wish, known):
            nearest[key] = entry
    # Settings as they come stand above those that somebody would have to ask for.
    found = sorted(nearest.values(), key=lambda entry: (entry.parameters, " " in entry.method))
    return [_option(wish, entry) for entry in found]


def _distance(wish: Wish, entry: Price) -> tuple[float, float, int, int]:
    """Threshold, then interval and restores as factors; then restores that were planned, and more seeds."""
    threshold = 0.0
    if wish.threshold is not None:  # a run that was allowed nothing is no neighbour of one that was
        near = entry.threshold > 0
        threshold = abs(math.log(entry.threshold / wish.threshold)) if near else math.inf
    return threshold, sum(_factors(wish, entry)), entry.unplanned, -len(entry.seeds)


def _option(wish: Wish, entry: Price) -> Option:
    stored = None
    if wish.parameters is not None and entry.ratio is not None:
        stored = wish.parameters * WEIGHT_BYTES * wish.checkpoints / entry.ratio.mean
    far = max(_factors(wish, entry)) > math.log(FAR)
    if not wish.restores:
        return Option(entry, 0.0, (0.0, 0.0), stored, far)
    if entry.stale is None or entry.metric != LAW_METRIC:
        return Option(entry, None, None, stored, far)
    lost = max(0.0, entry.stale.mean) * wish.lost
    return Option(entry, LAW * lost, (LAW_RANGE[0] * lost, LAW_RANGE[1] * lost), stored, far)


def _factors(wish: Wish, entry: Price) -> tuple[float, float]:
    """Logarithms of how far a setting's interval and restores are from the wish."""
    interval = abs(math.log(entry.interval / wish.interval))
    return interval, abs(math.log((entry.restores + 1) / (wish.restores + 1)))


def read_figures(path: Path = SHIPPED) -> list[Price]:
    """Figures from a file that benchmarks/plan_table.py wrote.

    Raises:
        ExperimentError: it cannot be read, or is not such a file.
    """
    data = _json(path)
    try:
        found = FIGURES.validate_python(data["rows"])
    except (KeyError, ValidationError) as error:
        raise ExperimentError(f"{path}: no figures to plan with ({type(error).__name__}).") from None
    return _in_range(found, path)


def read_prices(path: Path) -> list[Price]:
    """Figures of the runs in a results.json that saved on the way; a transfer's one checkpoint is none.

    Raises:
        ExperimentError: it cannot be read, or is not a results.json of this version.
    """
    data = _json(path)
    try:
        saved = [run for run in saving(data["runs"]) if kind_of(run) != "transfer"]  # has no interval
        if data["runs"] and not saved:
            raise ExperimentError(
                f"{path}: no run of it kept checkpoints of a training, so there is nothing to plan "
                f"with; give the results.json of an experiment of kind train."
            )
        found = FIGURES.validate_python([asdict(entry) for entry in prices({**data, "runs": saved})])
    except (KeyError, TypeError, AttributeError, ArithmeticError, ValueError) as error:
        reason = "a figure is of another type" if isinstance(error, ValidationError) else str(error)
        raise ExperimentError(
            f"{path}: not a results.json with prices of restores ({type(error).__name__}: {reason}); run its "
            f"experiment again with this version, which repeats no training."
        ) from None
    return _in_range(found, path)


def _in_range(figures: list[Price], path: Path) -> list[Price]:
    """The figures, if they are such as a run has: files are edited by hand."""
    for entry in figures:
        ratio = 1.0 if entry.ratio is None else entry.ratio.mean
        found = {"interval": entry.interval, "ratio": ratio}
        bad = [f"{name} {value:g}" for name, value in found.items() if not 0 < value < math.inf]
        if not 0 <= entry.threshold < math.inf:
            bad.append(f"threshold {entry.threshold:g}")
        if bad:
            raise ExperimentError(
                f"{path}: figures of {entry.method} are out of range ({', '.join(bad)}); give a results.json "
                "as it was written."
            )
    return figures


def _json(path: Path) -> Mapping[str, Any]:
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ExperimentError(f"{path}: cannot be read: {error.strerror}; give a results.json.") from None
    except (ValueError, RecursionError):
        raise ExperimentError(f"{path}: is not JSON; give a results.json.") from None
    if not isinstance(data, dict):
        raise ExperimentError(f"{path}: holds no mapping; give a results.json.")
    return data
