"""Disk budgets: "100GB" as a number of bytes."""

from __future__ import annotations

import math
import re

from dynaquant_core.errors import ConfigError

__all__ = ["parse_budget"]

#: No budget reaches this.
LIMIT = 1 << 63

_UNITS = {"": 1, "B": 1}
_UNITS |= {f"{prefix}B": 1000**power for power, prefix in enumerate("KMGTP", start=1)}
_UNITS |= {f"{prefix}IB": 1024**power for power, prefix in enumerate("KMGTP", start=1)}
_BUDGET = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*")


def parse_budget(value: float | str | None) -> int | None:
    """Bytes of ``value``: a number of bytes, or a text with a unit.

    KB, MB, GB, TB and PB are powers of 1000; KiB, MiB, GiB, TiB and PiB powers of 1024.

    Raises:
        ConfigError: it is neither, not positive, or more than any disk has.

    Example:
        >>> parse_budget("100GB"), parse_budget("1.5 GiB"), parse_budget(None)
        (100000000000, 1610612736, None)
    """
    if value is None:
        return None
    number = _number(value)
    if not 0 < number < LIMIT:  # so is what is no number
        found = hex(value) if type(value) is int else repr(value)  # a long one Python does not print
        raise ConfigError(
            "keep_within must be a positive number of bytes below 2^63 or a text like '100GB', "
            f"got {found:.80}."
        )
    return int(number)


def _number(value: float | str) -> float:
    """Bytes, not rounded; NaN for what is neither a number nor such a text."""
    if isinstance(value, str):
        found = _BUDGET.fullmatch(value)
        unit = _UNITS.get(found[2].upper()) if found else None
        return float(found[1]) * unit if found and unit else math.nan
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return math.nan
    return value if value >= 1 else math.nan
