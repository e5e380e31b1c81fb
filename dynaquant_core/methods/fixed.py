"""What methods share that have nothing to search: one configuration, one point, no options."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dynaquant_core.config import FrozenSettings
from dynaquant_core.methods.base import Space

__all__ = ["NoConfig", "OnePoint"]


@dataclass(frozen=True, slots=True)
class NoConfig(FrozenSettings):
    """The only point there is.

    Example:
        >>> NoConfig.from_dict(NoConfig().as_dict())
        NoConfig()
    """


class OnePoint:
    """The part of the method protocol (`methods.base.Method`) that does not depend on what is stored.

    Example:
        >>> OnePoint().space(gradients=True).default
        NoConfig()
    """

    def options(self) -> dict[str, Any]:
        """Nothing that a reader needs to know."""
        return {}

    def config(self, data: Mapping[str, Any]) -> NoConfig:
        """Takes back what `NoConfig.as_dict` wrote; raises ConfigError for any key."""
        return NoConfig.from_dict(data)

    def space(self, *, gradients: bool) -> Space:  # noqa: ARG002
        """One point."""
        point = NoConfig()
        return Space(build=NoConfig, axes={}, variants={}, refine={}, beyond=(point,), default=point)
