"""Saving on request: a signal sets a flag, the next optimizer step saves."""

from __future__ import annotations

import logging
import signal
import threading
from collections.abc import Iterable
from types import FrameType
from typing import Any

from dynaquant_core.errors import ConfigError

__all__ = ["SignalFlag"]

logger = logging.getLogger(__name__)


class SignalFlag:
    """Remembers that one of some signals arrived; `close` puts the handlers before it back.

    The handler only sets a flag, because it may run in the middle of an optimizer step, whose half-written
    weights are no checkpoint.  Signals can be caught in the main thread only (a rule of Python).

    Args:
        names: of signals, such as ``"SIGTERM"`` or ``"SIGUSR1"``; a single one may be given as it is.

    Raises:
        ConfigError: a name is not a signal, cannot be caught, or this is not the main thread.
    """

    def __init__(self, names: str | Iterable[str]) -> None:
        names = (names,) if isinstance(names, str) else names
        self.received: str | None = None
        self._before: dict[signal.Signals, Any] = {}
        for wanted in [_signal(name) for name in names]:
            try:
                before = self._catch(wanted)
            except ConfigError:
                self.close()
                raise
            self._before.setdefault(wanted, before)

    def take(self) -> str | None:
        """The name of a signal that arrived since the last call, else None."""
        name, self.received = self.received, None
        return name

    def close(self) -> None:
        """Puts the earlier handlers back; a second call does nothing."""
        for number, handler in self._before.items():
            if handler is not None:  # None: installed by something else than Python, cannot be put back
                signal.signal(number, handler)
        self._before.clear()

    def _catch(self, number: signal.Signals) -> Any:
        if threading.current_thread() is not threading.main_thread():
            raise ConfigError(
                "save_on needs the main thread, where alone Python receives signals; make the Checkpointer "
                "there or leave save_on out."
            )
        try:
            return signal.signal(number, self._handle)
        except (OSError, ValueError) as error:
            raise ConfigError(f"save_on: {number.name} cannot be caught ({error}); use SIGTERM.") from error

    def _handle(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002
        self.received = signal.Signals(number).name
        logger.warning("%s received: the state is saved after the next optimizer step", self.received)


def _signal(name: str) -> signal.Signals:
    try:
        return signal.Signals[name]
    except KeyError:
        raise ConfigError(
            f"save_on: {name!r} is not a signal of this system; use a name such as 'SIGTERM' or 'SIGUSR1'."
        ) from None
