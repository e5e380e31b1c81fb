"""Frozen settings: one point of a method's search, and the options a store is made with; checks of arguments.

A *config* is one searched point (bins, pruning, protection); it may differ at every checkpoint.
*Options* (coder, K-means, sigma, codebook scope, sketch) are fixed for a store and recorded in it.
"""

from __future__ import annotations

from dynaquant_core.config.checks import nearest, require, require_choice, require_number, require_threshold
from dynaquant_core.config.cube import MAX_BINS, Bins, Config, DynaQuantOptions, Metric, PruneScope
from dynaquant_core.config.lattice import LatticeConfig, LatticeOptions, Scale
from dynaquant_core.config.settings import FrozenSettings, known_keys

__all__ = [
    "MAX_BINS",
    "Bins",
    "Config",
    "DynaQuantOptions",
    "FrozenSettings",
    "LatticeConfig",
    "LatticeOptions",
    "Metric",
    "PruneScope",
    "Scale",
    "known_keys",
    "nearest",
    "require",
    "require_choice",
    "require_number",
    "require_threshold",
]
