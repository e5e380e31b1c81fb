"""What a framework's log gets of a checkpoint."""

from __future__ import annotations

from dynaquant_core import CheckpointInfo

__all__ = ["values_of"]


def values_of(info: CheckpointInfo) -> dict[str, float]:
    """Ratio, bytes, degradation and seconds of a checkpoint by name; what is not known is left out."""
    known = {
        "ratio": info.ratio,
        "bytes": info.stored_bytes,
        "degradation": info.degradation,
        **{f"seconds/{name}": seconds for name, seconds in info.seconds.items()},
    }
    return {f"dynaquant/{name}": value for name, value in known.items() if value is not None}
