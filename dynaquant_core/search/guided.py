"""Guided exhaustive search of the cube (paper sec. 5.2), with the sub-cubes defined.

Quality falls and the ratio rises along every axis.  So one trial settles many places: a place that meets the
goal settles all more careful ones (they are larger), one that fails settles all bolder ones (they fail too).
The cube's diagonal is bisected first; then the next trial is always the place that splits what is left most
evenly, which recurses into the sub-cubes without having to name them.

On a monotone surface the result is the exhaustive optimum.  Elsewhere it may miss a smaller candidate, but
what it returns was measured and met the goal.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dynaquant_core.search.grid import Grid, Place
from dynaquant_core.search.trials import Trial, Trials

__all__ = ["refine", "search_cube"]

Region = NDArray[np.bool_]


def search_cube(trials: Trials) -> Trial | None:
    """The smallest candidate of the cube that meets the goal, refined; None where no candidate does.

    Each variant is searched in turn with the bound carried over: a candidate that is not smaller than the
    best one so far is never measured.

    Args:
        trials: what was measured at this checkpoint already is taken into account.

    Raises:
        EvaluationError: measuring failed.
    """
    search = _bisect if len(trials.grid.cube_shape) == 1 else _search_variant
    for variant in trials.grid.variants:
        search(trials, variant)
    return None if trials.smallest is None else refine(trials, trials.smallest)


def refine(trials: Trials, winner: Trial) -> Trial:
    """Tries the refined axes' bolder values on the winner and keeps each that is smaller and meets the goal.

    Example:
        With ``embedding_bins`` (32, 16): 16 is tried on the configuration that won with 32.
    """
    grid = trials.grid
    for axis in range(len(grid.cube_shape), len(grid.shape)):
        while winner.place.steps[axis] + 1 < grid.shape[axis]:
            bolder = winner.place.moved(axis, 1)
            if trials.size(bolder) >= trials.size(winner.spot) or not trials.measure(bolder).met:
                break
            winner = trials.measure(bolder)
    return winner


def _bisect(trials: Trials, variant: tuple[int, ...]) -> None:
    """Finds the boldest place of a single axis that meets the goal, whatever the sizes."""
    careful, bold = -1, trials.grid.cube_shape[0]
    while bold - careful > 1:
        middle = (careful + bold) // 2
        if trials.measure(_place(trials.grid, (middle,), variant)).met:
            careful = middle
        else:
            bold = middle


def _search_variant(trials: Trials, variant: tuple[int, ...]) -> None:
    """Measures places of one variant until each one left is settled."""
    if trials.smallest is None:  # where even the most careful place fails, one trial tells
        trials.measure(_place(trials.grid, (0,) * len(trials.grid.cube_shape), variant))
    left = _unsettled(trials, variant)
    sizes = np.full(left.shape, np.inf)
    for point in map(tuple, np.argwhere(left)):
        sizes[point] = trials.size(_place(trials.grid, point, variant))
    while (left := left & (sizes < trials.bound)).any():
        point = _most_even_split(left, sizes)
        if trials.measure(_place(trials.grid, point, variant)).met:
            left[point] = False
        else:
            left[_bold(point)] = False


def _unsettled(trials: Trials, variant: tuple[int, ...]) -> Region:
    """The places of one variant that no earlier trial of this checkpoint settles."""
    grid = trials.grid
    left = np.ones(grid.cube_shape, dtype=np.bool_)
    careful_refined = (0,) * len(grid.space.refine)
    for trial in trials.inside:
        point = trial.place.steps[: left.ndim]
        if trial.place.variant != variant:
            continue
        if trial.met:
            left[point] = False
        elif trial.place.steps[left.ndim :] == careful_refined:
            left[_bold(point)] = False
    return left


def _most_even_split(left: Region, sizes: NDArray[np.float64]) -> tuple[int, ...]:
    """The place in ``left`` whose trial settles most of it whichever way it ends."""
    ranked = np.sort(sizes[left])
    not_smaller = ranked.size - np.searchsorted(ranked, sizes)
    bold = np.flip(left).astype(np.int64)
    for axis in range(left.ndim):
        bold = np.cumsum(bold, axis=axis)
    bold = np.flip(bold)
    both = np.minimum(not_smaller, bold) * (2 * left.size) + np.maximum(not_smaller, bold)
    best = int(np.argmax(np.where(left, both, -1)))
    return tuple(int(index) for index in np.unravel_index(best, left.shape))


def _bold(point: tuple[int, ...]) -> tuple[slice, ...]:
    """The places at least as bold as ``point``."""
    return tuple(slice(index, None) for index in point)


def _place(grid: Grid, point: tuple[int, ...], variant: tuple[int, ...]) -> Place:
    return Place(point + (0,) * len(grid.space.refine), variant)
