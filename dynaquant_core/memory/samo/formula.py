"""Bytes of a training state, term by term: dense and under SAMO (arXiv 2302.05045, sec. 3.3).

With f = 1 - p of the weights kept and Adam: theta16 2, grad16 2f, theta32 4f, grad32 4f, moments 8f, index
4f, and
2f for the copy at expansion: 24f + 2 bytes a parameter against 20.  So memory is saved from p = 0.25 on, and
66
to 78% of it at p = 0.8 to 0.9.
"""

from __future__ import annotations

from dynaquant_core.config import require, require_number

__all__ = ["TERMS", "break_even", "dense_bytes", "samo_bytes"]

TERMS = ("theta16", "grad16", "theta32", "grad32", "moments", "index", "temporary")

_HALF, _FULL, _INDEX = 2, 4, 4


def dense_bytes(parameters: int, *, moments: int = 2, half: bool = True) -> dict[str, int]:
    """A dense training state by term, in bytes.

    Args:
        parameters: how many are trained.
        moments: values that the optimizer keeps of each (Adam 2, SGD with momentum 1).
        half: mixed precision: 12 + 4 * moments bytes a parameter; else float32 alone: 8 + 4 * moments.

    Example:
        >>> sum(dense_bytes(1000).values()), sum(dense_bytes(1000, half=False).values())
        (20000, 16000)
    """
    copies = parameters if half else 0
    return {
        "theta16": _width(half) * parameters,
        "grad16": _width(half) * parameters,
        "theta32": _FULL * copies,
        "grad32": _FULL * copies,
        "moments": _FULL * moments * parameters,
        "index": 0,
        "temporary": 0,
    }


def samo_bytes(
    parameters: int, kept: int, *, whole: int = 0, moments: int = 2, half: bool = True
) -> dict[str, int]:
    """The same under SAMO.

    Args:
        parameters: how many are trained, pruned ones included.
        kept: how many are left.
        whole: of them in layers that are not pruned, which need no index.
        moments: as in `dense_bytes`.
        half: as in `dense_bytes`.  In float32 grad16 and grad32 are the same memory, and layers that are not
            pruned have no theta32 of their own.

    Raises:
        ConfigError: more are kept than there are.

    Example:
        >>> sum(samo_bytes(1000, 100).values()), sum(samo_bytes(1000, 200).values())
        (4400, 6800)
    """
    require(0 <= whole <= kept <= parameters, f"samo: {whole} <= {kept} <= {parameters} must hold.")
    return {
        "theta16": _width(half) * parameters,
        "grad16": _width(half) * kept,
        "theta32": _FULL * (kept if half else kept - whole),
        "grad32": _FULL * kept if half else 0,
        "moments": _FULL * moments * kept,
        "index": _INDEX * (kept - whole),
        "temporary": _HALF * kept if half else 0,
    }


def break_even(*, moments: int = 2, half: bool = True) -> float:
    """The sparsity from which on SAMO takes less memory than dense training.

    Example:
        >>> break_even(), break_even(half=False)
        (0.25, 0.4)
    """
    require_number("samo", "moments", moments, 0, 64)
    per_kept = sum(samo_bytes(1, 1, moments=moments, half=half).values()) - _width(half)
    return 1 - (sum(dense_bytes(1, moments=moments, half=half).values()) - _width(half)) / per_kept


def _width(half: bool) -> int:
    return _HALF if half else _FULL
