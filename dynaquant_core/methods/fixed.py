"""The configuration and the search space of methods that have nothing to search."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dynaquant_core.config import known_keys
from dynaquant_core.methods.base import Space

__all__ = ["NoConfig", "fixed_space"]


@dataclass(frozen=True, slots=True)
class NoConfig:
    """The only point there is.

    Example:
        >>> NoConfig.from_dict(NoConfig().as_dict())
        NoConfig()
    """

    def as_dict(self) -> dict[str, Any]:
        """Nothing."""
        return {}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> NoConfig:
        """Takes `as_dict` back; raises ConfigError for any key."""
        return cls(**known_keys(cls, data))


def fixed_space() -> Space:
    """The search space of one point.

    Example:
        >>> fixed_space().default
        NoConfig()
    """
    point = NoConfig()
    return Space(build=NoConfig, axes={}, variants={}, refine={}, beyond=(point,), default=point)
