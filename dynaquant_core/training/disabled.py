"""The switch that turns saving off from outside of a program."""

from __future__ import annotations

import os

from dynaquant_core.config import require

__all__ = ["DISABLE", "is_disabled"]

#: Environment variable.
DISABLE = "DYNAQUANT_DISABLE"

YES = ("1", "true", "yes", "on")
NO = ("", "0", "false", "no", "off")


def is_disabled() -> bool:
    """Whether ``DYNAQUANT_DISABLE`` is set.

    Raises:
        ConfigError: it is neither a yes nor a no; a run must not be without checkpoints by a slip.

    Example:
        >>> is_disabled()
        False
    """
    said = os.environ.get(DISABLE, "")
    word = said.strip().lower()
    require(
        word in YES + NO,
        f"{DISABLE} must be 1 (nothing is saved) or 0, found {said!r:.80}; set it to one, or unset it.",
    )
    return word in YES
