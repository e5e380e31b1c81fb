"""The method of a run, its search narrowed to what ``fix`` and ``search`` leave of it."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from dynaquant_core.config import nearest
from dynaquant_core.errors import ConfigError
from dynaquant_core.experiments.config.experiment import Experiment
from dynaquant_core.methods.base import Method, Space
from dynaquant_core.methods.registry import resolve_method
from dynaquant_core.search.grid import Grid, Place

__all__ = ["method_of", "narrowed"]


def method_of(experiment: Experiment) -> Method:
    """The method that a run saves with; its files name it, and its options, as if nothing were narrowed.

    Raises:
        ConfigError: an option, a fixed axis or a point is not one of the method's.
        UnknownMethodError: there is no such method.
    """
    method = resolve_method(experiment.method)
    if not experiment.fix and experiment.search is True:
        return method

    def space(*, gradients: bool) -> Space:
        left = narrowed(method.space(gradients=gradients), experiment.fix)
        default = {**left.default.as_dict(), **experiment.fix}
        point = experiment.search if isinstance(experiment.search, dict) else default
        return replace(left, default=method.config(point))

    other = copy.copy(method)
    other.__dict__["space"] = space
    space(gradients=True)  # so that a bad value is refused here
    return other


def narrowed(space: Space, fixed: Mapping[str, Any]) -> Space:
    """A space of which some axes have one value, which need not be one of those that were published.

    What lies beyond has it too, or is left out where it cannot; but for the exact way out, without which no
    threshold could be kept.

    Raises:
        ConfigError: there is no such axis, or no point with such a value.

    Example:
        >>> from dynaquant_core.methods.registry import resolve_method
        >>> space = narrowed(resolve_method("dynaquant").space(gradients=True), {"protect": 0.0})
        >>> space.axes["protect"], len(space.axes["bins"])
        ((0.0,), 6)
        >>> [(config.bins, config.protect) for config in space.beyond[:-1]]
        [(48, 0.0), (64, 0.0)]
    """
    kinds = {name: dict(getattr(space, name)) for name in ("axes", "variants", "refine")}
    for name, value in fixed.items():
        home = next((axes for axes in kinds.values() if name in axes), None)
        if home is None:
            known = [axis for axes in kinds.values() for axis in axes]
            raise ConfigError(f"fix: the method's search has no axis {name!r}; {nearest(name, known)}")
        home[name] = (value,)
    left = replace(
        space,
        axes=kinds["axes"],
        variants=kinds["variants"],
        refine=kinds["refine"],
        beyond=(*_held(space, fixed), *space.beyond[-1:]),
    )
    grid = Grid(left)
    for variant in grid.variants:
        grid.config(Place((0,) * len(grid.shape), variant))
    return left


def _held(space: Space, fixed: Mapping[str, Any]) -> list[Any]:
    """What lies beyond but the last, with the values of some axes; each once."""
    names = [*space.axes, *space.variants, *space.refine]
    found: list[Any] = []
    for entry in space.beyond[:-1]:
        own = {name: value for name, value in entry.as_dict().items() if name in names}
        held = space.build(**{**own, **fixed})
        word = any(isinstance(own.get(name), str) for name in (*space.axes, *space.refine))
        if held not in found and (held == entry or not word):  # beside a word ("bf16") no other axis counts
            found.append(held)
    return found
