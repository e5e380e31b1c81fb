"""What a framework's own log gets of a checkpoint."""

from __future__ import annotations

from dynaquant_core.store.info import CheckpointInfo

__all__ = ["figures_of"]


def figures_of(info: CheckpointInfo) -> dict[str, float]:
    """Step, ratio, bytes, degradation, evaluations and seconds by name; what is not known is left out.

    Example:
        >>> from types import SimpleNamespace as Info
        >>> figures_of(Info(step=4, ratio=9.0, stored_bytes=70, degradation=None, evaluations=1, seconds={}))
        {'dynaquant/step': 4, 'dynaquant/ratio': 9.0, 'dynaquant/bytes': 70, 'dynaquant/evaluations': 1}
    """
    known = {
        "step": info.step,
        "ratio": info.ratio,
        "bytes": info.stored_bytes,
        "degradation": info.degradation,
        "evaluations": info.evaluations,
        **{f"seconds/{stage}": seconds for stage, seconds in info.seconds.items()},
    }
    return {f"dynaquant/{name}": value for name, value in known.items() if value is not None}
