"""The overhead of each setting as a table: search apart and included, here and in a large training."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from dynaquant_core.experiments.figures import model_label, setting_label
from dynaquant_core.experiments.overhead import ALLOWED, Overhead, overhead_of
from dynaquant_core.experiments.price import Run
from dynaquant_core.experiments.report.table import Row, percent
from dynaquant_core.experiments.restores import unplanned

__all__ = ["overhead_rows"]


def overhead_rows(runs: Sequence[Run]) -> list[Row]:
    """A row for each model, method, threshold and interval, mean over its runs; interrupted ones apart.

    Example:
        >>> overhead_rows([])
        []
    """
    groups: dict[tuple[str, str, float, int], list[Overhead]] = {}
    for run in runs:
        label = setting_label(run)
        if extra := unplanned(run):  # it was restored, and is not averaged with one that was not
            label += f", +{extra} unplanned"
        setting = (model_label(run), label, run["threshold"], run["interval_steps"])
        groups.setdefault(setting, []).append(overhead_of(run))
    return [_row(*setting, alike) for setting, alike in groups.items()]


def _row(model: str, method: str, threshold: float, interval: int, alike: Sequence[Overhead]) -> Row:
    here = {stage: statistics.fmean(one.here[stage] for one in alike) for stage in alike[0].here}
    large = {stage: statistics.fmean(one.large[stage] for one in alike) for stage in alike[0].large}
    together = Overhead(here, large)
    return {
        "model": model,
        "method": method,
        "threshold": percent(threshold),
        "interval (steps)": str(interval),
        "collector": percent(here["collector"]),
        "held": percent(here["held"]),
        "search": percent(here["search"]),
        "without search": percent(here["collector"] + here["held"]),
        "all": percent(together.share),
        "335M, 30 min: without search": percent(large["collector"] + large["held"]),
        "all ": percent(sum(large.values())),
        f"over {percent(ALLOWED, digits=1)}": ", ".join(together.exceeding) or "none",
    }
