"""The keys of an index's ``meta`` that every reader relies on, checked when written and when read."""

from __future__ import annotations

import re
from typing import Any, Final

from dynaquant_core.errors import CorruptFileError
from dynaquant_core.format.limits import MAX_META_BITS

__all__ = ["check_meta"]

_DIGEST: Final = re.compile(r"[0-9a-f]{32}")


def check_meta(meta: Any) -> dict[str, Any]:
    """Returns ``meta`` if the keys that readers rely on are there and sound.

    Args:
        meta: a dict with ``step`` and ``sequence`` (whole numbers >= 0), ``kind`` ("key" or "delta"),
            ``base`` (None for a key; for a delta {"step", "sequence", "digest"}), ``parts`` ({name:
            {"method", "options", "config"}}) and optionally ``report`` (a dict) and ``unused`` (what a part
            is in ``parts``); further keys are free.
            No whole number in it has more than `MAX_META_BITS`: Python makes no float, nor a text, of longer.

    Raises:
        CorruptFileError: a key is missing or of another type; names it.

    Example:
        >>> check_meta({"step": 1, "sequence": 0, "kind": "key", "base": None, "parts": {}})["step"]
        1
    """
    _need(isinstance(meta, dict), "it is not a dictionary")
    _need(_is_short(meta), f"it holds a whole number of more than {MAX_META_BITS} bits")
    for key in ("step", "sequence"):
        _need(_is_count(meta.get(key)), f"{key!r} must be a whole number >= 0, found {_shown(meta.get(key))}")
    kind, base = meta.get("kind"), meta.get("base")
    _need(kind in ("key", "delta"), f"'kind' must be 'key' or 'delta', found {_shown(kind)}")
    _need((base is None) == (kind == "key"), f"a {kind} checkpoint has the base {_shown(base)}")
    if base is not None:
        _check_base(base)
    parts, unused = meta.get("parts"), meta.get("unused")
    _need(isinstance(parts, dict), f"'parts' must be a dictionary, found {_shown(parts)}")
    for name, part in parts.items():
        _need(isinstance(name, str), f"the part {_shown(name)} is not described")
        _check_part(f"parts.{name:.40}", part)
    if unused is not None:
        _check_part("unused", unused)
    _need(isinstance(meta.get("report", {}), (dict, type(None))), "'report' must be a dictionary")
    return dict(meta)


def _check_base(base: Any) -> None:
    _need(isinstance(base, dict), f"'base' must be a dictionary, found {_shown(base)}")
    for key in ("step", "sequence"):
        _need(
            _is_count(base.get(key)),
            f"'base.{key}' must be a whole number >= 0, found {_shown(base.get(key))}",
        )
    digest = base.get("digest")
    good = isinstance(digest, str) and _DIGEST.fullmatch(digest) is not None
    _need(good, f"'base.digest' must be 32 hexadecimal digits, found {_shown(digest)}")


def _check_part(place: str, part: Any) -> None:
    _need(isinstance(part, dict), f"{place!r} must be a dictionary, found {_shown(part)}")
    _need(isinstance(part.get("method"), str), f"'{place}.method' must be a name")
    for key in ("options", "config"):
        found = part.get(key)
        _need(isinstance(found, dict), f"'{place}.{key}' must be a dictionary, found {_shown(found)}")


def _is_count(value: Any) -> bool:
    return type(value) is int and value >= 0


def _is_short(value: Any) -> bool:
    if isinstance(value, dict):
        return all(map(_is_short, value)) and all(map(_is_short, value.values()))
    if isinstance(value, (list, tuple)):
        return all(map(_is_short, value))
    return not isinstance(value, int) or value.bit_length() <= MAX_META_BITS


def _shown(value: Any) -> str:
    """What was found, for a message; dates of NumPy may be none and cannot be printed."""
    try:
        return f"{value!r:.80}"
    except ValueError:
        return f"a {type(value).__name__}"


def _need(condition: bool, problem: str) -> None:
    if not condition:
        raise CorruptFileError(f"The checkpoint's description is not sound: {problem[:200]}.")
