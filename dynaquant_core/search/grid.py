"""Walking a method's space: places are indices on its axes, 0 being the most careful value.

An axis of `Space.axes` or `Space.refine` is ordered, so a place can dominate another; variants have no order.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from typing import Any, cast

from dynaquant_core.methods.base import Space
from dynaquant_core.search.spoilt import SpoiltConfig

__all__ = ["CAREFUL", "Careful", "Choosable", "Grid", "Place", "Spoilt", "Spot", "boldest"]


@dataclass(frozen=True, slots=True, order=True)
class Place:
    """One candidate of the space.

    Args:
        steps: index on each ordered axis (the cube's, then those refined); 0 = most careful.
        variant: index on each unordered axis.

    Example:
        >>> Place((1, 2), (0,)).bolder_or_same(Place((1, 0), (0,)))
        True
    """

    steps: tuple[int, ...]
    variant: tuple[int, ...]

    def bolder_or_same(self, other: Place) -> bool:
        """Whether this place is at least as bold as ``other`` on every ordered axis, in the same variant."""
        return self.variant == other.variant and all(
            a >= b for a, b in zip(self.steps, other.steps, strict=True)
        )

    def moved(self, axis: int, by: int) -> Place:
        """The place ``by`` steps away on one axis (not checked against the space's borders)."""
        steps = tuple(step + by if i == axis else step for i, step in enumerate(self.steps))
        return Place(steps, self.variant)


@dataclass(frozen=True, slots=True)
class Careful:
    """The fixed point of a space, which is used without an evaluation."""


@dataclass(frozen=True, slots=True)
class Spoilt:
    """A place whose decoded tensors are spoilt (`search.spoilt`)."""

    of: Place


CAREFUL = Careful()

#: A candidate that a search may choose: a place of the space, or an index into `Space.beyond`.
Choosable = Place | int

#: Whatever has a config.
Spot = Choosable | Careful | Spoilt


@dataclass(frozen=True, slots=True)
class Grid:
    """A space with coordinates.

    Args:
        space: the method's space; its cube is `Space.axes`, searched with every refined axis at 0.

    Example:
        >>> space = Space(dict, {"bins": (16, 8, 4)}, {"metric": ("m", "s")}, {"embed": (32, 16)}, (), None)
        >>> grid = Grid(space)
        >>> grid.cube_shape, grid.shape, grid.config(Place((2, 0), (1,)))
        ((3,), (3, 2), {'bins': 4, 'embed': 32, 'metric': 's'})
    """

    space: Space

    @property
    def cube_shape(self) -> tuple[int, ...]:
        """Number of values on each axis of the cube."""
        return tuple(len(values) for values in self.space.axes.values())

    @property
    def shape(self) -> tuple[int, ...]:
        """Number of values on each ordered axis: the cube's, then those refined."""
        return self.cube_shape + tuple(len(values) for values in self.space.refine.values())

    @property
    def variants(self) -> list[tuple[int, ...]]:
        """Every combination of the unordered axes; one empty combination where there is none."""
        return list(product(*(range(len(values)) for values in self.space.variants.values())))

    def settings(self, place: Place) -> dict[str, Any]:
        """The values at ``place`` by axis name, as `Space.build` takes them."""
        ordered = {**self.space.axes, **self.space.refine}
        chosen = {name: ordered[name][step] for name, step in zip(ordered, place.steps, strict=True)}
        for (name, values), index in zip(self.space.variants.items(), place.variant, strict=True):
            chosen[name] = values[index]
        return chosen

    def config(self, spot: Spot) -> Any:
        """The method's config at a place, at an index of `Space.beyond`, or of one of the others."""
        if isinstance(spot, Place):
            return self.space.build(**self.settings(spot))
        if isinstance(spot, Spoilt):
            return SpoiltConfig(self.config(spot.of))
        return self.space.beyond[spot] if isinstance(spot, int) else self.space.default

    def key(self, spot: Spot) -> Hashable:
        """What makes two candidates the same: their config, or their spot where a config has no hash."""
        config = self.config(spot)
        try:
            hash(config)
        except TypeError:
            return spot
        return cast("Hashable", config)

    def locate(self, settings: Mapping[str, Any]) -> Place | None:
        """The place that has these values; None where an ordered value is not (any more) in the space.

        A variant that is gone (sensitivity, once there are no gradients) is replaced by the first one.
        """
        ordered = {**self.space.axes, **self.space.refine}
        steps = [_index(values, settings.get(name)) for name, values in ordered.items()]
        variant = [_index(values, settings.get(name)) for name, values in self.space.variants.items()]
        if any(step is None for step in steps):
            return None
        return Place(
            tuple(step for step in steps if step is not None), tuple(index or 0 for index in variant)
        )

    def careful_box(self, place: Place, radius: int) -> Iterator[Place]:
        """Every place at most ``radius`` steps more careful on each axis, ``place`` itself included."""
        for steps in product(*(range(max(0, step - radius), step + 1) for step in place.steps)):
            yield Place(steps, place.variant)

    def around(self, place: Place, radius: int) -> Iterator[Place]:
        """Every other place of the same variant at most ``radius`` steps away on each ordered axis."""
        ranges = (
            range(max(0, step - radius), min(size, step + radius + 1))
            for step, size in zip(place.steps, self.shape, strict=True)
        )
        yield from (Place(steps, place.variant) for steps in product(*ranges) if steps != place.steps)

    def flips(self, place: Place) -> Iterator[Place]:
        """The same steps in every other variant."""
        yield from (Place(place.steps, variant) for variant in self.variants if variant != place.variant)


def boldest(places: list[Place]) -> list[Place]:
    """Those of ``places`` that no other one is bolder than; on a monotone surface the smallest is among them.

    Example:
        >>> [place.steps for place in boldest([Place((0, 1), ()), Place((1, 1), ()), Place((2, 0), ())])]
        [(1, 1), (2, 0)]
    """
    return [
        place
        for place in places
        if not any(other != place and other.bolder_or_same(place) for other in places)
    ]


def _index(values: tuple[Any, ...], value: object) -> int | None:
    return values.index(value) if value in values else None
