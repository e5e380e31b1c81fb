"""Puts plots and the page beside results.json."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from dynaquant_core.errors import DependencyError, StorageError
from dynaquant_core.experiments.report.ablation import ablation_parts
from dynaquant_core.experiments.report.page import page
from dynaquant_core.experiments.report.plots import draw, png
from dynaquant_core.experiments.report.price import draw_price, has_restores
from dynaquant_core.experiments.results import Results

__all__ = ["write_report"]

#: Each run of a larger grid goes without plots of its own: the page would take minutes and megabytes.
MOST_DRAWN = 24


@dataclass(frozen=True, slots=True)
class _Plots:
    """PNGs: of each run by name, of what restores cost, and of an ablation's sections by name."""

    runs: list[dict[str, bytes]]
    price: bytes | None = None
    ablation: Mapping[str, bytes] = field(default_factory=dict)
    missing: DependencyError | None = None

    def files(self) -> Mapping[str, bytes]:
        """File name -> PNG."""
        named = {
            f"run-{index}-{name}.png": data
            for index, images in enumerate(self.runs)
            for name, data in images.items()
        }
        named |= {f"{name}.png": data for name, data in self.ablation.items()}
        return named if self.price is None else named | {"price.png": self.price}


def write_report(results: Results) -> None:
    """Writes ``plots/run-N-NAME.png``, those of restores and of an ablation, and ``report.html``.

    Raises:
        DependencyError: matplotlib is missing; the page is written all the same, without plots.
        StorageError: the system refuses.
    """
    folder, plots = results.path.parent, _drawn(results)
    try:
        for name, data in plots.files().items():
            (folder / "plots").mkdir(exist_ok=True)
            (folder / "plots" / name).write_bytes(data)
        (folder / "report.html").write_text(
            page(results, plots.runs, plots.price, plots.ablation), encoding="utf-8"
        )
    except OSError as error:
        raise StorageError(f"{folder}: the report cannot be written: {error.strerror}.") from None
    if plots.missing is not None:
        raise plots.missing


def _drawn(results: Results) -> _Plots:
    runs = results.data["runs"]
    nothing: list[dict[str, bytes]] = [{} for _ in runs]
    try:
        price = png(draw_price, runs) if has_restores(runs) else None
        ablation = {part.name: png(part.draw, part.runs) for part in ablation_parts(runs)}
        drawn = [draw(run) if run["checkpoints"] else {} for run in runs]
        return _Plots(drawn if len(runs) <= MOST_DRAWN else nothing, price, ablation)
    except DependencyError as error:
        return _Plots(nothing, missing=error)
