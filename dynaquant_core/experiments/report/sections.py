"""Parts of the page that belong to a kind of experiment: tables and plots over all of its runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from dynaquant_core.experiments.price import Run
from dynaquant_core.experiments.report.buckets import bucket_rows, bucket_runs, draw_buckets
from dynaquant_core.experiments.report.rework import draw_rework, failing_runs, rework_rows, stage_rows
from dynaquant_core.experiments.report.systems import (
    draw_systems,
    role_rows,
    state_rows,
    system_rows,
    system_runs,
)
from dynaquant_core.experiments.report.table import Row

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["SECTIONS", "Section", "sections_of"]

Table = Callable[[Sequence[Run]], list[Row]]


@dataclass(frozen=True, slots=True)
class Section:
    """One part of the page.

    Args:
        title: its heading.
        words: what it shows.
        runs: picks those that it is about; without any it is left out.
        tables: heading -> rows; a table without rows is left out.
        plot: fills a figure.
    """

    title: str
    words: str
    runs: Callable[[Sequence[Run]], list[Run]]
    tables: Mapping[str, Table]
    plot: Callable[[Figure, Sequence[Run]], None]


#: Name of the plot's file -> the section.
SECTIONS: Final[Mapping[str, Section]] = {
    "rework": Section(
        "Rework",
        "Iterations from a restore until the loss on the search set is back where it was at the failure: "
        "mean and 95% interval (bootstrap over the repeats).  Bytes: a checkpoint's streams, the mean "
        "without the first one, which is whole.",
        failing_runs,
        {"By method": rework_rows, "Stages of LC-Checkpoint": stage_rows},
        draw_rework,
    ),
    "buckets": Section(
        "Buckets",
        "How far the loss moves when a bucket of a change (one sign, one exponent) is left out, over how far "
        "the whole change moved it; ranks by falling exponent, the larger error of the two signs.",
        bucket_runs,
        {"By change": bucket_rows},
        draw_buckets,
    ),
    "systems": Section(
        "Systems",
        "A training under a system that shrinks what it holds or moves, beside the same training without "
        "(of two bits, as many replicas reduced densely).  Smaller: of SmaQ and its rivals raw over stored "
        "bytes of all that they code; of SAMO the dense training state over what is held; of two bits "
        "gradients in float32 over what replicas hand in, the warm-up included.  Seconds are those of a "
        "machine that may have had other work.",
        system_runs,
        {"By setting": system_rows, "Roles": role_rows, "State, in bytes": state_rows},
        draw_systems,
    ),
}


def sections_of(runs: Sequence[Run]) -> dict[str, tuple[Section, list[Run]]]:
    """The sections that have something to show, with the runs that they are about."""
    found = {name: (section, section.runs(runs)) for name, section in SECTIONS.items()}
    return {name: both for name, both in found.items() if both[1]}
