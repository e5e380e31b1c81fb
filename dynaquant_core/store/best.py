"""Which checkpoint is the best to ship: by the metric that was measured of what its file decodes to."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Literal

from dynaquant_core.errors import CheckpointNotFoundError, EmptyStoreError
from dynaquant_core.store.info import CheckpointInfo

__all__ = ["best_of", "measured"]

#: How a metric is meant where no checkpoint tells: as `Checkpointer` has it.
USUAL: Literal["min"] = "min"
MODES: dict[str, Literal["min", "max"]] = {"min": "min", "max": "max"}


def measured(info: CheckpointInfo) -> float | None:
    """The metric of a checkpoint as stored, on the search's batches; None where it was not measured.

    Example:
        >>> info = CheckpointInfo(1, 0, "key", None, "exact", None, 8, 8, {}, {"search": 2.5})
        >>> measured(info)
        2.5
    """
    return _number(info.quality, "search")


def best_of(infos: Iterable[CheckpointInfo], where: str) -> CheckpointInfo:
    """The checkpoint with the best metric as stored; of equals the newest.

    Whether less or more is better is what the newest measured checkpoint says; one that an early version
    wrote says it by the sign of its degradation.

    Args:
        infos: to choose from.
        where: what they are of, for messages.

    Raises:
        EmptyStoreError: there is none.
        CheckpointNotFoundError: none of them was measured.

    Example:
        >>> def info(step, metric):
        ...     quality = {"reference": 0.5, "search": metric}
        ...     return CheckpointInfo(step, step, "key", None, "exact", None, 8, 8, {}, quality,
        ...                           report={"mode": "max"})
        >>> best_of([info(10, 0.7), info(20, 0.9), info(30, 0.8)], "a store").step
        20
    """
    listed = sorted(infos, key=lambda info: info.sequence, reverse=True)
    if not listed:
        raise EmptyStoreError(f"{where} holds no checkpoint that can be read; there is no best one.")
    found = [(value, info) for info in listed if (value := measured(info)) is not None]
    if not found:
        raise CheckpointNotFoundError(
            f"{where} holds no checkpoint whose quality was measured ({len(listed)} without), so none is the "
            "best; name a step, or save with evaluate=."
        )
    told = (_mode(info) for _, info in found)
    sign = -1.0 if next((mode for mode in told if mode), USUAL) == "max" else 1.0
    return min(found, key=lambda pair: sign * pair[0])[1]


def _mode(info: CheckpointInfo) -> Literal["min", "max"] | None:
    """How the metric is meant, as far as one checkpoint tells."""
    told = info.report.get("mode")
    if isinstance(told, str) and told in MODES:
        return MODES[told]
    reference, stored = _number(info.quality, "reference"), measured(info)
    worse = info.degradation
    if reference is None or stored is None or not worse or stored == reference:
        return None
    return "min" if (stored > reference) == (worse > 0) else "max"


def _number(quality: object, key: str) -> float | None:
    """A finite number of a record that a file holds, which may be anything."""
    value = quality.get(key) if isinstance(quality, Mapping) else None
    if not isinstance(value, (int, float)) or isinstance(value, bool) or not math.isfinite(value):
        return None
    return float(value)
