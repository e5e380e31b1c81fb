"""Arguments looked at before anything is done: each check raises ConfigError in one sentence."""

from __future__ import annotations

from collections.abc import Iterable

from dynaquant_core.errors import ConfigError

__all__ = ["nearest", "require", "require_choice", "require_number", "require_threshold"]


def require(condition: bool, message: str) -> None:
    """Raises ConfigError with ``message`` unless ``condition`` holds."""
    if not condition:
        raise ConfigError(message)


def require_choice(owner: str, name: str, value: object, choices: tuple[object, ...]) -> None:
    """Raises ConfigError unless ``value`` is one of ``choices``."""
    known = ", ".join(map(repr, choices))
    require(value in choices, f"{owner}: {name} must be one of {known}, got {value!r}.")


def require_number(
    owner: str,
    name: str,
    value: object,
    low: float,
    high: float,
    *,
    open_high: bool = False,
    words: tuple[str | None, ...] = (),
) -> None:
    """Raises ConfigError unless ``value`` is in [low, high], or [low, high) when open, or of ``words``."""
    if isinstance(value, str | None) and value in words:
        return
    good = isinstance(value, (int, float)) and not isinstance(value, bool)
    good = good and low <= value and (value < high if open_high else value <= high)  # type: ignore[operator]
    bracket = ")" if open_high else "]"
    listed = "".join(f" or {word!r}" for word in words)
    require(good, f"{owner}: {name} must be a number in [{low}, {high}{bracket}{listed}, got {value!r}.")


def require_threshold(owner: str, value: object) -> None:
    """Raises ConfigError unless ``value`` is a share in [0, 1): who writes 5 means 0.05."""
    good = isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value < 1
    require(
        good, f"{owner}: threshold must be a share of at least 0 and below 1, as 0.05 for 5%, got {value!r}."
    )


def nearest(word: object, known: Iterable[str]) -> str:
    """A hint for a word that is not ``known``: the nearest one, or all of them.

    Example:
        >>> nearest("treshold", ["steps", "threshold"])
        "did you mean 'threshold'?"
        >>> nearest("zzz", ["steps", "threshold"])
        'known: steps, threshold.'
    """
    from difflib import get_close_matches

    names = list(known)
    near = get_close_matches(str(word), names, n=1)
    return f"did you mean {near[0]!r}?" if near else f"known: {', '.join(names)}."
