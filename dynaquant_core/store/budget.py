"""Disk budgets: "100GB" as a number of bytes."""

from __future__ import annotations

import math
import re

from dynaquant_core.errors import ConfigError

__all__ = ["parse_budget"]

_UNITS = {"": 1, "B": 1}
_UNITS |= {f"{prefix}B": 1000**power for power, prefix in enumerate("KMGTP", start=1)}
_UNITS |= {f"{prefix}IB": 1024**power for power, prefix in enumerate("KMGTP", start=1)}
_BUDGET = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*")


def parse_budget(value: float | str | None) -> int | None:
    """Bytes of ``value``: a number of bytes, or a text with a unit.

    KB, MB, GB, TB and PB are powers of 1000; KiB, MiB, GiB, TiB and PiB powers of 1024.

    Raises:
        ConfigError: it is neither, or not positive.

    Example:
        >>> parse_budget("100GB"), parse_budget("1.5 GiB"), parse_budget(None)
        (100000000000, 1610612736, None)
    """
    if value is None:
        return None
    number = isinstance(value, (int, float)) and math.isfinite(value) and value >= 1
    found = _BUDGET.fullmatch(value if isinstance(value, str) else str(int(value)) if number else "")
    unit = _UNITS.get(found[2].upper()) if found else None
    if found is None or unit is None or isinstance(value, bool) or float(found[1]) <= 0:
        raise ConfigError(
            f"keep_within must be a positive number of bytes or a text like '100GB', got {value!r}."
        )
    return int(float(found[1]) * unit)
