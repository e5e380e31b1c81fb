"""Colours and marks, the same for a method and its settings in every plot of an experiment."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from textwrap import fill
from typing import TYPE_CHECKING

from dynaquant_core.experiments.figures import setting_label
from dynaquant_core.experiments.price import Run

if TYPE_CHECKING:
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure as Canvas

__all__ = ["COLOURS", "GREY", "Look", "legend_beside", "looks", "plain_numbers", "wrapped"]

#: Colour-blind safe (Okabe and Ito), a setting each; then they repeat with another mark.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#E69F00", "#CC79A7", "#56B4E9")
MARKS = ("o", "s", "^", "D")
GREY = "#777777"
#: Ends of a logarithmic axis further apart than this have three numbers of 1, 2 and 5 between them.
NARROW = 10.0
#: Letters of a line of a label, and inches that a line of a legend takes.
LETTERS, LINE = 44, 0.17


@dataclass(frozen=True, slots=True)
class Look:
    """How a setting is drawn.

    Args:
        colour: of its lines and marks.
        mark: matplotlib's word for it.
    """

    colour: str
    mark: str


def looks(runs: Sequence[Run], label: Callable[[Run], str] = setting_label) -> dict[str, Look]:
    """Each label, in order of appearance, and how it is drawn.

    Args:
        runs: of one experiment.
        label: what runs of one look have in common.

    Example:
        >>> looks([{"method": "a", "options": {}, "moments": "8bit"}])
        {'a': Look(colour='#0072B2', mark='o')}
    """
    return {
        name: Look(COLOURS[index % len(COLOURS)], MARKS[index // len(COLOURS) % len(MARKS)])
        for index, name in enumerate(dict.fromkeys(label(run) for run in runs))
    }


def wrapped(label: str) -> str:
    """A label in lines of a few words: one that tells many settings would push the panels off the plot."""
    return fill(label, LETTERS)


def legend_beside(canvas: Canvas) -> None:
    """One legend of all panels, to the right of them; the canvas grows where it is higher."""
    legend = canvas.legend(frameon=False, fontsize="small", loc="outside right center")
    lines = sum(1 + text.get_text().count("\n") for text in legend.get_texts())
    canvas.set_figheight(max(canvas.get_figheight(), LINE * lines))


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
