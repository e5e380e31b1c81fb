"""Puts plots and the page beside results.json."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from dynaquant_core.errors import DependencyError, StorageError
from dynaquant_core.experiments.price import Run
from dynaquant_core.experiments.report.history import draw_history
from dynaquant_core.experiments.report.page import page
from dynaquant_core.experiments.report.plots import draw, png
from dynaquant_core.experiments.report.price import draw_price, has_restores
from dynaquant_core.experiments.report.rework import draw_rework, has_rework
from dynaquant_core.experiments.report.tradeoff import draw_tradeoff
from dynaquant_core.experiments.results import Results

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["write_report"]

#: Each run of a larger grid goes without plots of its own: the page would take minutes and megabytes.
MOST_DRAWN = 24


@dataclass(frozen=True, slots=True)
class _Plots:
    """PNGs: of each run by name, and of all runs together by name."""

    runs: list[dict[str, bytes]]
    together: dict[str, bytes] = field(default_factory=dict)
    missing: DependencyError | None = None

    def files(self) -> Mapping[str, bytes]:
        """File name -> PNG."""
        named = {
            f"run-{index}-{name}.png": data
            for index, images in enumerate(self.runs)
            for name, data in images.items()
        }
        return named | {f"{name}.png": data for name, data in self.together.items()}


def write_report(results: Results) -> None:
    """Writes ``plots/run-N-NAME.png``, ``plots/NAME.png`` of all runs together, and ``report.html``.

    Raises:
        DependencyError: matplotlib is missing; the page is written all the same, without plots.
        StorageError: the system refuses.
    """
    folder, plots = results.path.parent, _drawn(results)
    try:
        for name, data in plots.files().items():
            (folder / "plots").mkdir(exist_ok=True)
            (folder / "plots" / name).write_bytes(data)
        (folder / "report.html").write_text(page(results, plots.runs, plots.together), encoding="utf-8")
    except OSError as error:
        raise StorageError(f"{folder}: the report cannot be written: {error.strerror}.") from None
    if plots.missing is not None:
        raise plots.missing


def _drawn(results: Results) -> _Plots:
    runs = results.data["runs"]
    nothing: list[dict[str, bytes]] = [{} for _ in runs]
    try:
        together = {name: png(plot, runs) for name, plot in _wanted(runs).items()}
        return _Plots([draw(run) for run in runs] if len(runs) <= MOST_DRAWN else nothing, together)
    except DependencyError as error:
        return _Plots(nothing, missing=error)


def _wanted(runs: Sequence[Run]) -> dict[str, Callable[[Figure, Sequence[Run]], None]]:
    """The plots of all runs together that have something to show."""
    wanted: dict[str, Callable[[Figure, Sequence[Run]], None]] = {}
    if len(runs) > 1:
        wanted |= {"tradeoff": draw_tradeoff, "history": draw_history}
    if has_restores(runs):
        wanted["price"] = draw_price
    if has_rework(runs):
        wanted["rework"] = draw_rework
    return wanted
