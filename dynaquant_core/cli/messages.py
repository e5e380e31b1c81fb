"""What the command line says beside its result: all of it to stderr, so that stdout stays clean for pipes."""

from __future__ import annotations

import logging
import sys
from contextlib import suppress
from typing import TextIO

__all__ = ["complain", "on_terminal", "raise_volume", "say", "show_messages"]

LOGGER = logging.getLogger("dynaquant_core")
#: Of the plugins, whose exporters and importers commands call.
PLUGINS = [
    logging.getLogger(f"dynaquant_{name}") for name in ("accelerate", "composer", "lightning", "transformers")
]


class OneLine(logging.Formatter):
    """Message as it is; its level in front from warnings up."""

    def format(self, record: logging.LogRecord) -> str:
        """One record as one line (more only with a traceback, which ``--debug`` asks for)."""
        text = super().format(record)
        return text if record.levelno < logging.WARNING else f"{record.levelname.lower()}: {text}"


class ToStderr(logging.StreamHandler):  # type: ignore[type-arg]
    """Writes to what ``sys.stderr`` was when the command began; a logger has at most one of these."""


def show_messages(*, debug: bool) -> None:
    """Sends the package's log and its plugins' to stderr: warnings and up, or everything with ``debug``."""
    handler = ToStderr(sys.stderr)
    handler.setFormatter(OneLine())
    for logger in (LOGGER, *PLUGINS):
        for old in [old for old in logger.handlers if isinstance(old, ToStderr)]:
            logger.removeHandler(old)
        logger.addHandler(handler)
        logger.setLevel(logging.DEBUG if debug else logging.NOTSET)
    LOGGER.setLevel(logging.DEBUG if debug else logging.WARNING)


def raise_volume() -> None:
    """Lets informational messages through: for commands that work for minutes."""
    LOGGER.setLevel(min(LOGGER.level, logging.INFO))


def on_terminal() -> bool:
    """Whether a person watches stderr."""
    err: TextIO | None = sys.stderr  # None where the process was started without
    return err is not None and err.isatty()


def say(line: str) -> None:
    """One line for a person, on stderr; where it cannot be written the work goes on without."""
    err: TextIO | None = sys.stderr
    if err is None:
        return
    with suppress(OSError):
        err.write(f"{line}\n")
        err.flush()


def complain(line: str) -> None:
    """The one line that an error ends in."""
    say(f"dynaquant: error: {line}")
