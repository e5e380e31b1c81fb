"""Puts plots and the page beside results.json."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from dynaquant_core.errors import DependencyError, StorageError
from dynaquant_core.experiments.report.page import page
from dynaquant_core.experiments.report.plots import draw, png
from dynaquant_core.experiments.report.price import draw_price, has_restores
from dynaquant_core.experiments.report.sections import sections_of
from dynaquant_core.experiments.results import Results

__all__ = ["write_report"]

#: Each run of a larger grid goes without plots of its own: the page would take minutes and megabytes.
MOST_DRAWN = 24


@dataclass(frozen=True, slots=True)
class _Plots:
    """PNGs: of each run by name, of what restores cost, and of the sections of single kinds."""

    runs: list[dict[str, bytes]]
    price: bytes | None = None
    sections: Mapping[str, bytes] = field(default_factory=dict)
    missing: DependencyError | None = None

    def files(self) -> Mapping[str, bytes]:
        """File name -> PNG."""
        named = {
            f"run-{index}-{name}.png": data
            for index, images in enumerate(self.runs)
            for name, data in images.items()
        }
        named |= {f"{name}.png": data for name, data in self.sections.items()}
        return named if self.price is None else named | {"price.png": self.price}


def write_report(results: Results) -> None:
    """Writes ``report.html``, and into ``plots``: ``run-N-NAME.png``, ``price.png``, one for each section.

    Raises:
        DependencyError: matplotlib is missing; the page is written all the same, without plots.
        StorageError: the system refuses.
    """
    folder, plots = results.path.parent, _drawn(results)
    try:
        for name, data in plots.files().items():
            (folder / "plots").mkdir(exist_ok=True)
            (folder / "plots" / name).write_bytes(data)
        text = page(results, plots.runs, plots.price, plots.sections)
        (folder / "report.html").write_text(text, encoding="utf-8")
    except OSError as error:
        raise StorageError(f"{folder}: the report cannot be written: {error.strerror}.") from None
    if plots.missing is not None:
        raise plots.missing


def _drawn(results: Results) -> _Plots:
    runs = results.data["runs"]
    nothing: list[dict[str, bytes]] = [{} for _ in runs]
    try:
        price = png(draw_price, runs) if has_restores(runs) else None
        sections = {name: png(section.plot, own) for name, (section, own) in sections_of(runs).items()}
        few = len(runs) <= MOST_DRAWN
        drawn = [draw(run) if few and run["kind"] != "rework" else {} for run in runs]
        return _Plots(drawn, price, sections)
    except DependencyError as error:
        return _Plots(nothing, missing=error)
