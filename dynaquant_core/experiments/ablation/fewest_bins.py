"""The fewest bins that keep a threshold: binary search over any whole number, other axes tried at each.

Source: the table "bins needed" of arXiv 2306.11800, with the methods' own spaces for the other axes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

from dynaquant_core.errors import ConfigError
from dynaquant_core.methods.base import Space

__all__ = ["BINS_AXIS", "Fewest", "Points", "fewest_bins", "points_by_bins"]

#: Method -> the axis of its space that counts bins.
BINS_AXIS = {"dynaquant": "bins", "qd": "maximum", "cnr": "bins", "gobo": "bins"}

#: Most bins of any method: a code is one byte.
MOST = 256

#: Bins -> the points that have them, careful first.
Points = dict[int, list[Any]]


@dataclass(frozen=True, slots=True)
class Fewest:
    """What a search came to.

    Args:
        bins: the fewest; None where there are none, or none were found in time.
        mark: ``""``, ``"x"``: no number of bins of the method keeps the threshold, ``"T"``: out of time.
        point: the first point of so many bins that keeps it.
    """

    bins: int | None
    mark: str
    point: Any = None


class _OutOfTime(Exception):  # noqa: N818 - no error: it ends a search
    """The time for a checkpoint is used up."""


def points_by_bins(space: Space, axis: str, *, pruning: str | None, embeddings: bool) -> Points:
    """Every point of a space by its number of bins, any whole number that the method takes.

    Args:
        space: of the method; the values of ``axis`` in it do not matter.
        axis: name of the axis that counts bins.
        pruning: name of an axis that stays at 0; None: the method has none.
        embeddings: whether the model has any; else axes that only they have stay at their first value.

    Example:
        >>> from dynaquant_core.methods.registry import resolve_method
        >>> space = resolve_method("dynaquant").space(gradients=True)
        >>> points = points_by_bins(space, "bins", pruning="prune", embeddings=False)
        >>> min(points), max(points), [point.protect for point in points[7]]
        (2, 64, [0.01, 0.005, 0.0005])
    """
    others = {name: values for name, values in space.axes.items() if name != axis}
    if pruning is not None:
        others[pruning] = (0.0,)
    others |= {name: values if embeddings else values[:1] for name, values in space.refine.items()}
    others |= space.variants
    return {
        bins: points for bins in range(2, MOST + 1) if (points := list(_points(space, axis, bins, others)))
    }


def _points(space: Space, axis: str, bins: int, others: dict[str, tuple[Any, ...]]) -> Iterator[Any]:
    """Different points of so many bins; none where the method does not take the number."""
    seen = set()
    for values in product(*others.values()):
        try:
            point = space.build(**{axis: bins}, **dict(zip(others, values, strict=True)))
        except ConfigError:
            return
        if point not in seen:
            seen.add(point)
            yield point


def fewest_bins(points: Points, keeps: Callable[[int, Any], bool], in_time: Callable[[], bool]) -> Fewest:
    """Halves the range of bins; a number of bins will do if any of its points does.

    Guarantee: the answer keeps the threshold, and the next smaller number of bins of the method does not, or
    there is none.  Where more bins are never worse, it is the fewest of all.

    Args:
        points: at least one number of bins.
        keeps: whether a point of so many bins keeps the threshold.
        in_time: asked before each measurement.

    Example:
        >>> fewest_bins({k: [k] for k in range(2, 65)}, lambda bins, point: bins >= 11, lambda: True).bins
        11
    """
    ladder = sorted(points)
    try:
        good = _first(points[ladder[-1]], ladder[-1], keeps, in_time)
        if good is None:
            return Fewest(None, "x")
        low, high = -1, len(ladder) - 1  # below low none will do, at high one does
        while high - low > 1:
            middle = (low + high) // 2
            found = _first(points[ladder[middle]], ladder[middle], keeps, in_time)
            if found is None:
                low = middle
            else:
                high, good = middle, found
        return Fewest(ladder[high], "", good)
    except _OutOfTime:
        return Fewest(None, "T")


def _first(
    points: Sequence[Any], bins: int, keeps: Callable[[int, Any], bool], in_time: Callable[[], bool]
) -> Any | None:
    for point in points:
        if not in_time():
            raise _OutOfTime
        if keeps(bins, point):
            return point
    return None
