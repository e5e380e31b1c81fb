"""Saving on request: a signal sets a flag, the next optimizer step saves."""

from __future__ import annotations

import logging
import os
import signal
import threading
import weakref
from collections.abc import Iterable
from types import FrameType
from typing import Any

from dynaquant_core.errors import ConfigError

__all__ = ["SignalFlag"]

logger = logging.getLogger(__name__)


class SignalFlag:
    """Remembers that one of some signals arrived; the last `close` puts the handlers before it back.

    The handler only sets a flag, because it may run in the middle of an optimizer step, whose half-written
    weights are no checkpoint.  Signals can be caught in the main thread only (a rule of Python).  Any number
    of flags may wait for one signal and be closed in any order; each of them sees it.  One that is given up
    is closed: nobody would answer.  A forked child has the handlers from before from its first moment: a data
    loader's worker can be terminated as ever.

    Args:
        names: of signals, such as ``"SIGTERM"`` or ``"SIGUSR1"``; a single one may be given as it is; None
            is none.

    Raises:
        ConfigError: a name is not a signal, cannot be caught, or this is not the main thread.
    """

    def __init__(self, names: str | Iterable[str] | None) -> None:
        self._mark = _Mark()
        caught: list[signal.Signals] = []
        self._close = weakref.finalize(self, _close, self._mark, caught)
        self._close.atexit = False
        for wanted in dict.fromkeys(map(_signal, _listed(names))):
            try:
                _catch(wanted, self._mark)
            except ConfigError:
                self.close()
                raise
            caught.append(wanted)

    @property
    def asked(self) -> str | None:
        """The name of a signal that arrived and was not taken, else None."""
        return self._mark.received

    def take(self) -> str | None:
        """The name of a signal that arrived since the last call, else None."""
        name, self._mark.received = self._mark.received, None
        return name

    def close(self) -> None:
        """Waits for the signals no longer; one that nobody took is told in the log.

        A second call does nothing.
        """
        self._close()


class _Mark:
    """What a handler sets: a flag without its owner's life."""

    def __init__(self) -> None:
        self.received: str | None = None


class _Catcher:
    """The handler of one signal, shared by all flags of the process that wait for it."""

    def __init__(self, number: signal.Signals, flags: list[_Mark]) -> None:
        self.number = number
        self.flags = flags
        self.before: Any = signal.signal(number, self.handle)

    def handle(self, number: int, frame: FrameType | None) -> None:
        """Sets the flags; where none is left, the handler before this one has its say."""
        if self.flags:
            for flag in self.flags:
                flag.received = self.number.name
            logger.warning("%s received: the state is saved after the next optimizer step", self.number.name)
        elif callable(self.before):
            self.before(number, frame)
        else:
            signal.signal(number, self._put_back())
            signal.raise_signal(number)

    def is_current(self) -> bool:
        """Whether nobody has put another handler over this one."""
        return signal.getsignal(self.number) == self.handle

    def remove(self) -> None:
        """Puts the handler before this one back, unless somebody has put theirs over it."""
        if self.is_current():
            signal.signal(self.number, self._put_back())

    def _put_back(self) -> Any:
        """What was there before; the system's default for what was not installed by Python."""
        return signal.SIG_DFL if self.before is None else self.before


#: What catches each signal in this process.
_CATCHERS: dict[signal.Signals, _Catcher] = {}
#: Each thread's signal mask from before the fork that it is making.
_MASKS = threading.local()


def _catch(number: signal.Signals, flag: _Mark) -> None:
    if not _in_main_thread():
        raise ConfigError(
            "save_on needs the main thread, where alone Python receives signals; make the Checkpointer "
            "there or leave save_on out."
        )
    catcher = _CATCHERS.get(number)
    if catcher is None or not catcher.is_current():
        try:
            catcher = _Catcher(number, catcher.flags if catcher else [])
        except (OSError, ValueError) as error:
            raise ConfigError(f"save_on: {number.name} cannot be caught ({error}); use SIGTERM.") from error
        _CATCHERS[number] = catcher
    catcher.flags.append(flag)


def _close(flag: _Mark, caught: list[signal.Signals]) -> None:
    for number in caught:
        _let_go(number, flag)
    if flag.received is not None:
        logger.warning("%s was not answered before the end: nothing was saved for it", flag.received)


def _let_go(number: signal.Signals, flag: _Mark) -> None:
    catcher = _CATCHERS.get(number)
    if catcher is None or flag not in catcher.flags:  # in a forked child, which catches nothing
        return
    catcher.flags.remove(flag)
    if not catcher.flags and _in_main_thread():  # elsewhere it stays, and passes signals on
        catcher.remove()
        del _CATCHERS[number]


def _in_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()


def _hold_back() -> None:
    """Before a fork: what arrives while the child still has our handler would be lost to it."""
    if _CATCHERS:
        _MASKS.before = signal.pthread_sigmask(signal.SIG_BLOCK, list(_CATCHERS))


def _let_through() -> None:
    mask = _MASKS.__dict__.pop("before", None)
    if mask is not None:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def _forget() -> None:
    """In a forked child: its signals are not about the run, and may be what ends it (Process.terminate)."""
    for catcher in _CATCHERS.values():
        catcher.flags.clear()
        catcher.remove()
    _CATCHERS.clear()
    _let_through()


os.register_at_fork(before=_hold_back, after_in_parent=_let_through, after_in_child=_forget)


def _listed(names: str | Iterable[str] | None) -> list[str]:
    if names is None or isinstance(names, str):
        return [] if names is None else [names]
    try:
        return list(names)
    except TypeError:
        raise ConfigError(
            f"save_on must be names of signals such as 'SIGTERM', got {type(names).__name__} {names!r:.80}."
        ) from None


def _signal(name: str) -> signal.Signals:
    try:
        return signal.Signals[name]
    except (KeyError, TypeError):  # TypeError: it is not even hashable
        raise ConfigError(
            f"save_on: {name!r} is not a signal of this system; use a name such as 'SIGTERM' or 'SIGUSR1'."
        ) from None
