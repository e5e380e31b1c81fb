"""Puts plots and the page beside results.json."""

from __future__ import annotations

from dynaquant_core.errors import DependencyError, StorageError
from dynaquant_core.experiments.report.page import page
from dynaquant_core.experiments.report.plots import draw
from dynaquant_core.experiments.results import Results

__all__ = ["write_report"]


def write_report(results: Results) -> None:
    """Writes ``plots/run-N-NAME.png`` and ``report.html``.

    Raises:
        DependencyError: matplotlib is missing; the page is written all the same, without plots.
        StorageError: the system refuses.
    """
    folder = results.path.parent
    missing: DependencyError | None = None
    try:
        plots = [draw(run) for run in results.data["runs"]]
    except DependencyError as error:
        missing, plots = error, [{} for _ in results.data["runs"]]
    try:
        for index, images in enumerate(plots):
            for name, png in images.items():
                (folder / "plots").mkdir(exist_ok=True)
                (folder / "plots" / f"run-{index}-{name}.png").write_bytes(png)
        (folder / "report.html").write_text(page(results, plots), encoding="utf-8")
    except OSError as error:
        raise StorageError(f"{folder}: the report cannot be written: {error.strerror}.") from None
    if missing is not None:
        raise missing
