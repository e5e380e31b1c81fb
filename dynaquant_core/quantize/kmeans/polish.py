"""Lloyd's iterations from centres that are nearly right already (paper A.2.2; computed in a way of ours).

In one dimension a cluster is a run of points, so with prefix sums an iteration costs k searches instead of a
pass over the points.  From the centres of a little earlier in training it ends near an exact fit; it may stop
in a local optimum, so it judges centres and does not replace the fit.
"""

from __future__ import annotations

import numpy as np

from dynaquant_core.quantize.kmeans.exact import Floats, checked_points, prefix

__all__ = ["polish"]

ITERATIONS = 20
#: Stops once no centre moves by more than this share of the points' spread.
TOLERANCE = 1e-4


def polish(values: Floats, weights: Floats, centres: Floats) -> Floats:
    """Centres after Lloyd's iterations from ``centres``; the weighted loss never rises.

    Args:
        values: float64[n], ascending.
        weights: float64[n], not negative; points of weight 0 are left out.
        centres: float64[k], ascending.

    Returns:
        float64[k], ascending; a centre that no point is nearest to stays where it was.

    Raises:
        ConfigError: the points are not valid (`exact.solve`).

    Example:
        >>> polish(np.array([0.0, 1.0, 10.0, 11.0]), np.ones(4), np.array([0.0, 9.0])).tolist()
        [0.5, 10.5]
    """
    values, weights = checked_points(values, weights)
    if values.size == 0 or centres.size == 0:
        return centres
    mass, moment = prefix(weights), prefix(weights * values)
    spread = float(values[-1] - values[0])
    for _ in range(ITERATIONS):
        edges = np.searchsorted(values, (centres[1:] + centres[:-1]) / 2, side="right")
        edges = np.concatenate(([0], edges, [values.size]))
        masses, moments = np.diff(mass[edges]), np.diff(moment[edges])
        moved = np.where(masses > 0.0, moments / np.where(masses > 0.0, masses, 1.0), centres)
        settled = float(np.abs(moved - centres).max()) <= TOLERANCE * spread
        centres = moved
        if settled:
            break
    return centres
