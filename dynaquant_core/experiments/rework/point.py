"""The point of a method that makes a checkpoint of a given size."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dynaquant_core.errors import ConfigError
from dynaquant_core.experiments.config.experiment import Experiment
from dynaquant_core.methods.registry import resolve_method

__all__ = ["POINTS", "point_of"]

#: Size -> the point of ``lc`` that arXiv 2009.13003 sets against it.
POINTS: Mapping[float, Mapping[str, Any]] = {0.05: {"bits": 2}, 0.1: {"bits": 3}}


def point_of(experiment: Experiment) -> Any:
    """The configuration that a run's checkpoints are written with.

    ``rework.point`` as it is; for a ``rework.size`` s that of `POINTS`, or the share s of a method that
    saves one.

    Args:
        experiment: one run with a section ``rework``.

    Raises:
        ConfigError: the method has no point of this size, or takes no such point.
        UnknownMethodError: there is no such method.
    """
    method, section = resolve_method(experiment.method), experiment.rework
    if section is None:
        raise ConfigError(f"{experiment.name}: there is no section rework, so no point of a checkpoint.")
    if section.point is not None:
        return method.config(section.point)
    size = section.size or 0.0  # a section has one of the two
    if method.name == "lc" and size in POINTS:
        return method.config(POINTS[size])
    if "share" in method.space(gradients=False).axes:
        return method.config({"share": size})
    known = f"sizes {', '.join(map(str, POINTS))} have one; " if method.name == "lc" else ""
    raise ConfigError(
        f"rework.size: method {method.name!r} has no point of size {size}; {known}give rework.point."
    )
