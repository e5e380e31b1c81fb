"""The keys of an index's ``meta`` that every reader relies on, checked when written and when read."""

from __future__ import annotations

import re
from typing import Any, Final

from dynaquant_core.errors import CorruptFileError

__all__ = ["check_meta"]

_DIGEST: Final = re.compile(r"[0-9a-f]{32}")


def check_meta(meta: Any) -> dict[str, Any]:
    """Returns ``meta`` if the keys that readers rely on are there and sound.

    Args:
        meta: a dict with ``step`` and ``sequence`` (whole numbers >= 0), ``kind`` ("key" or "delta"),
            ``base`` (None for a key; for a delta {"step", "sequence", "digest"}), ``parts`` ({name:
            {"method", "options", "config"}}) and optionally ``report`` (a dict); further keys are free.

    Raises:
        CorruptFileError: a key is missing or of another type; names it.

    Example:
        >>> check_meta({"step": 1, "sequence": 0, "kind": "key", "base": None, "parts": {}})["step"]
        1
    """
    _need(isinstance(meta, dict), "it is not a dictionary")
    for key in ("step", "sequence"):
        _need(_is_count(meta.get(key)), f"{key!r} must be a whole number >= 0, found {meta.get(key)!r}")
    kind, base = meta.get("kind"), meta.get("base")
    _need(kind in ("key", "delta"), f"'kind' must be 'key' or 'delta', found {kind!r}")
    _need((base is None) == (kind == "key"), f"a {kind} checkpoint has the base {base!r}")
    if base is not None:
        _check_base(base)
    _check_parts(meta.get("parts"))
    _need(isinstance(meta.get("report", {}), (dict, type(None))), "'report' must be a dictionary")
    return dict(meta)


def _check_base(base: Any) -> None:
    _need(isinstance(base, dict), f"'base' must be a dictionary, found {base!r}")
    for key in ("step", "sequence"):
        _need(_is_count(base.get(key)), f"'base.{key}' must be a whole number >= 0, found {base.get(key)!r}")
    digest = base.get("digest")
    good = isinstance(digest, str) and _DIGEST.fullmatch(digest) is not None
    _need(good, f"'base.digest' must be 32 hexadecimal digits, found {digest!r}")


def _check_parts(parts: Any) -> None:
    _need(isinstance(parts, dict), f"'parts' must be a dictionary, found {parts!r}")
    for name, part in parts.items():
        _need(isinstance(name, str) and isinstance(part, dict), f"the part {name!r} is not described")
        _need(isinstance(part.get("method"), str), f"'parts.{name}.method' must be a name")
        for key in ("options", "config"):
            found = part.get(key)
            _need(isinstance(found, dict), f"'parts.{name}.{key}' must be a dictionary, found {found!r}")


def _is_count(value: Any) -> bool:
    return type(value) is int and value >= 0


def _need(condition: bool, problem: str) -> None:
    if not condition:
        raise CorruptFileError(f"The checkpoint's description is not sound: {problem[:200]}.")
