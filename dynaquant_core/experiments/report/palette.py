"""Colours and marks, the same for a method in every plot of an experiment."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dynaquant_core.experiments.price import Run, method_label

if TYPE_CHECKING:
    from matplotlib.axis import Axis

__all__ = ["COLOURS", "GREY", "Look", "looks", "plain_numbers"]

#: Colour-blind safe (Okabe and Ito), a method each; then they repeat with another mark.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#E69F00", "#CC79A7", "#56B4E9")
MARKS = ("o", "s", "^", "D")
GREY = "#777777"
#: Ends of a logarithmic axis further apart than this have three numbers of 1, 2 and 5 between them.
NARROW = 10.0


@dataclass(frozen=True, slots=True)
class Look:
    """How a method is drawn.

    Args:
        colour: of its lines and marks.
        mark: matplotlib's word for it.
    """

    colour: str
    mark: str


def looks(runs: Sequence[Run]) -> dict[str, Look]:
    """Label of each method, in order of appearance, and how it is drawn.

    Example:
        >>> looks([{"method": "a", "options": {}}])
        {'a': Look(colour='#0072B2', mark='o')}
    """
    labels = dict.fromkeys(method_label(run) for run in runs)
    return {
        label: Look(COLOURS[index % len(COLOURS)], MARKS[index // len(COLOURS) % len(MARKS)])
        for index, label in enumerate(labels)
    }


def plain_numbers(axis: Axis) -> None:
    """Numbers of a logarithmic axis as people read them: 40, not 4 x 10^1.  Call it when all is drawn."""
    from matplotlib.ticker import LogLocator, MaxNLocator, NullFormatter

    low, high = axis.get_view_interval()
    if high < NARROW * low:  # where powers and their multiples would be one or two numbers
        axis.set_major_locator(MaxNLocator(8, steps=[1, 2, 5, 10]))
    else:
        axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0), numticks=8))
    axis.set_major_formatter("{x:g}")
    axis.set_minor_formatter(NullFormatter())
