"""Counts an index: which bytes belong to which role, and what the user is told about a checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from numbers import Integral, Real
from typing import Any

import numpy as np

from dynaquant_core.config import Config
from dynaquant_core.errors import DynaQuantError
from dynaquant_core.format import Index
from dynaquant_core.methods.registry import resolve_method
from dynaquant_core.store.info import CheckpointInfo
from dynaquant_core.store.meta import Meta

__all__ = ["count_parts", "summarise"]

#: Role that a stream shared by all tensors of a part is charged to.
PART_ROLES = {"weights": "weight", "moments": "moment", "exact": "exact"}


def summarise(index: Index, meta: Meta, size: int) -> CheckpointInfo:
    """The info of one file.

    Args:
        index: of the file.
        meta: its ``index.meta``, read.
        size: bytes of the file.
    """
    parts = count_parts(index, size)
    written = meta.parts.get("weights") or meta.parts.get("exact")
    report = meta.report
    return CheckpointInfo(
        step=meta.step,
        sequence=meta.sequence,
        kind=meta.kind,
        base_step=meta.base.step if meta.base else None,
        method=written.method if written else "exact",
        options=written.options if written else {},
        config=_config(written.method, written.config) if written else {},
        raw_bytes=sum(part["raw_bytes"] for part in parts.values()),
        stored_bytes=size,
        parts=parts,
        report=report,
        **_measured(report),
        exact=tuple(t.name for t in index.tensors if t.part == "exact" and t.role == "weight" and _large(t)),
    )


def _measured(report: Mapping[str, Any]) -> dict[str, Any]:
    """What a search recorded, where it is of the type that `CheckpointInfo` promises: a file may hold any."""
    quality, met, tried, seconds = map(report.get, ("quality", "met", "evaluations", "seconds"))
    timed = seconds if isinstance(seconds, Mapping) else {}
    return {
        "quality": quality if isinstance(quality, Mapping) else None,
        "degradation": _number(report.get("degradation")),
        "met": bool(met) if isinstance(met, (bool, np.bool_)) else None,
        "evaluations": max(int(tried), 0) if isinstance(tried, Integral) else 0,
        "seconds": {stage: value for stage in timed if (value := _number(timed[stage])) is not None},
    }


def _number(value: object) -> float | None:
    return None if isinstance(value, bool) or not isinstance(value, Real) else float(value)


def count_parts(index: Index, size: int) -> dict[str, dict[str, int]]:
    """Role -> raw and stored bytes; header, index and footer are charged to "exact".

    The stored bytes of all roles sum to ``size``.
    """
    parts = {role: {"raw_bytes": 0, "stored_bytes": 0} for role in ("weight", "moment", "exact")}
    for tensor in index.tensors:
        parts[tensor.role]["raw_bytes"] += tensor.spec.nbytes
    for stream in index.streams:
        role = index.tensors[stream.tensor].role if stream.tensor >= 0 else PART_ROLES[stream.part]
        parts[role]["stored_bytes"] += stream.nbytes
    parts["exact"]["stored_bytes"] += size - sum(part["stored_bytes"] for part in parts.values())
    return parts


def _large(tensor: Any) -> bool:
    return len(tensor.shape) >= 2 and "float" in tensor.dtype


def _config(method: str, config: dict[str, Any]) -> Any:
    """The configuration as its method's own object; as plain data where the method is not installed."""
    try:
        return Config.from_dict(config) if method == "dynaquant" else resolve_method(method).config(config)
    except DynaQuantError:
        return config
