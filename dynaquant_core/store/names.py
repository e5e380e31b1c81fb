"""File names of a store: which files are ours, and what their names hint at.

The numbers in a name serve people and error messages; where they and a file's index differ, the index holds.
"""

from __future__ import annotations

import operator
import re
import uuid
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from dynaquant_core.errors import ConfigError

__all__ = [
    "LOCK_FILE",
    "PINS_FILE",
    "NameHint",
    "checkpoint_name",
    "is_leftover",
    "is_ours",
    "is_temporary_of",
    "parse_name",
    "temporary_name",
    "whole_step",
]

LOCK_FILE = ".dynaquant.lock"
PINS_FILE = "pins.json"

_CHECKPOINT = re.compile(r"step-(\d{1,20})-seq-(\d{1,20})(?:-r(\d{1,6}))?\.dq")
_TEMPORARY = re.compile(r"\.tmp-[0-9a-f]{32}")
_LEFTOVER = re.compile(r"(?:step-\d{1,20}-seq-\d{1,20}(?:-r\d{1,6})?\.dq|pins\.json)\.tmp-[0-9a-f]{32}")


@dataclass(frozen=True, slots=True)
class NameHint:
    """What a file name says: step, commit sequence, and revision (copies on another base count up)."""

    step: int
    sequence: int
    revision: int


def checkpoint_name(step: int, sequence: int, revision: int = 0) -> str:
    """The file name of a checkpoint; names sort by step.

    Example:
        >>> checkpoint_name(2000, 7)
        'step-000002000-seq-000007.dq'
    """
    tail = f"-r{revision}" if revision else ""
    return f"step-{step:09d}-seq-{sequence:06d}{tail}.dq"


@lru_cache(maxsize=1 << 14)  # every name in the folder is asked for at every save
def parse_name(name: str) -> NameHint | None:
    """What ``name`` hints at; None if it is not a checkpoint's name.

    Example:
        >>> parse_name("step-000002000-seq-000007-r1.dq")
        NameHint(step=2000, sequence=7, revision=1)
        >>> parse_name("notes.txt") is None
        True
    """
    found = _CHECKPOINT.fullmatch(name)
    if found is None:
        return None
    step, sequence, revision = found.groups(default="0")
    return NameHint(int(step), int(sequence), int(revision))


def temporary_name(name: str) -> str:
    """A fresh name beside ``name``, recognised by `is_leftover` should its writer die."""
    return f"{name}.tmp-{uuid.uuid4().hex}"


def is_temporary_of(name: str, whole: str) -> bool:
    """Whether ``name`` is a `temporary_name` of the file ``whole``.

    Example:
        >>> is_temporary_of(temporary_name("model.dq"), "model.dq"), is_temporary_of("a.dq.tmp-1", "a.dq")
        (True, False)
    """
    head, tail = name[: len(whole)], name[len(whole) :]
    return head == whole and _TEMPORARY.fullmatch(tail) is not None


def is_leftover(name: str) -> bool:
    """Whether ``name`` is what a save that died may leave behind.

    Example:
        >>> is_leftover(temporary_name(checkpoint_name(1, 1))), is_leftover("mine.tmp-1")
        (True, False)
    """
    return _LEFTOVER.fullmatch(name) is not None


def is_ours(name: str) -> bool:
    """Whether a store may have written ``name``; everything else in its folder is foreign."""
    return name in {LOCK_FILE, PINS_FILE} or parse_name(name) is not None or is_leftover(name)


def whole_step(step: Any) -> int:
    """A step as an int, whatever whole number it is, NumPy's too.

    Raises:
        ConfigError: it is none.

    Example:
        >>> whole_step(2000)
        2000
    """
    try:
        if isinstance(step, bool):
            raise TypeError
        return operator.index(step)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"step must be a whole number, got {step!r}.") from error
