"""Puts plots and the page beside results.json."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from dynaquant_core.errors import DependencyError, StorageError
from dynaquant_core.experiments.figures import saving
from dynaquant_core.experiments.price import Run
from dynaquant_core.experiments.report.ablation import ablation_parts
from dynaquant_core.experiments.report.history import draw_history
from dynaquant_core.experiments.report.page import page
from dynaquant_core.experiments.report.plots import draw, png
from dynaquant_core.experiments.report.price import draw_price, has_restores
from dynaquant_core.experiments.report.recovery import draw_recovery, has_recovery
from dynaquant_core.experiments.report.sections import sections_of
from dynaquant_core.experiments.report.tradeoff import draw_tradeoff
from dynaquant_core.experiments.results import Results

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["write_report"]

Plot = tuple[Callable[["Figure", Sequence[Run]], None], Sequence[Run]]

#: Each run of a larger grid goes without plots of its own: the page would take minutes and megabytes.
MOST_DRAWN = 24

#: Names of plots of one run.
OF_ONE = re.compile(r"(run|coders)-\d+")


@dataclass(frozen=True, slots=True)
class _Plots:
    """PNGs: of each run by name, folders of the runs, and of all runs together by name."""

    runs: list[dict[str, bytes]]
    folders: list[str]
    together: dict[str, bytes] = field(default_factory=dict)
    missing: DependencyError | None = None

    def files(self) -> Mapping[str, bytes]:
        """File name -> PNG."""
        named = {
            f"{folder}-{name}.png": data
            for folder, images in zip(self.folders, self.runs, strict=True)
            for name, data in images.items()
        }
        return named | {f"{name}.png": data for name, data in self.together.items()}


def write_report(results: Results) -> None:
    """Writes ``plots/run-N-NAME.png`` (of folder ``run-N``), ``plots/NAME.png`` of all, and ``report.html``.

    Plots of an earlier report that this one does not have are removed.

    Raises:
        DependencyError: matplotlib is missing; the page is written all the same, without plots.
        StorageError: the system refuses.
    """
    folder, plots = results.path.parent, _drawn(results)
    try:
        files = plots.files()
        for path in () if plots.missing else (folder / "plots").glob("*.png"):
            if OF_ONE.match(path.name) and path.name not in files:
                path.unlink()
        for name, data in files.items():
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
    folders = [run.get("folder", f"run-{index}") for index, run in enumerate(runs)]
    try:
        together = {name: png(plot, subject) for name, (plot, subject) in _wanted(runs).items()}
        few = len(runs) <= MOST_DRAWN
        drawn = [draw(run) if few and run["checkpoints"] else {} for run in runs]
        return _Plots(drawn, folders, together)
    except DependencyError as error:
        return _Plots(nothing, folders, missing=error)


def _wanted(runs: Sequence[Run]) -> dict[str, Plot]:
    """The plots of all runs together that have something to show, and what they show it of."""
    saved = saving(runs)
    wanted: dict[str, Plot] = {
        name: (section.plot, own) for name, (section, own) in sections_of(runs).items()
    }
    wanted |= {part.name: (part.draw, part.runs) for part in ablation_parts(runs)}
    if len(saved) > 1:
        wanted |= {"tradeoff": (draw_tradeoff, saved), "history": (draw_history, saved)}
    if has_restores(saved):
        wanted["price"] = (draw_price, saved)
    if has_recovery(saved):
        wanted["recovery"] = (draw_recovery, saved)
    return wanted
