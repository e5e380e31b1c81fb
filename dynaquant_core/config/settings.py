"""Frozen dataclasses of plain values: as JSON-ready data, and back with a look at the keys."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, fields
from typing import TYPE_CHECKING, Any

from dynaquant_core.config.checks import nearest
from dynaquant_core.errors import ConfigError

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["FrozenSettings", "known_keys"]


class FrozenSettings:
    """What is a frozen dataclass of plain values, as JSON-ready data and back."""

    __slots__ = ()

    def as_dict(self) -> dict[str, Any]:
        """The values by name; `from_dict` takes them back."""
        return asdict(self)  # type: ignore[call-overload, no-any-return]  # what derives from it is a dataclass

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """Takes `as_dict` back; raises ConfigError on unknown keys or bad values."""
        return cls(**known_keys(cls, data))


def known_keys(cls: type, data: Mapping[str, Any]) -> dict[str, Any]:
    """Returns ``data`` as a dict; raises ConfigError naming the nearest field for an unknown key."""
    names = [field.name for field in fields(cls)]
    for key in data:
        if key not in names:
            raise ConfigError(f"{cls.__name__} has no setting {key!r}; {nearest(key, names)}")
    return dict(data)
