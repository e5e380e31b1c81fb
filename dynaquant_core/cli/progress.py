"""Long work shows that it is alive: a bar on a terminal, plain lines elsewhere; both on stderr."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
)

from dynaquant_core.cli.messages import on_terminal, say

__all__ = ["Watch", "watching", "working"]

#: Seconds between two plain lines about the same work.
QUIET_SECONDS = 10.0


@contextmanager
def working(what: str) -> Iterator[None]:
    """Marks work of unknown length: a spinner with the time, or a line before and a line after."""
    start = time.monotonic()
    if on_terminal():
        text = TextColumn("{task.description}", markup=False)
        with Progress(SpinnerColumn(), text, TimeElapsedColumn(), console=_terminal(), transient=True) as bar:
            bar.add_task(what, total=None)
            yield
        return
    say(f"{what} ...")
    yield
    say(f"{what}: done in {time.monotonic() - start:.1f} s")


@contextmanager
def watching() -> Iterator[Watch]:
    """A `Watch` whose bars are on screen as long as the block runs."""
    if not on_terminal():
        yield Watch(None)
        return
    columns = TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn()
    note = TextColumn("{task.fields[note]}", markup=False)
    with Progress(*columns, TimeElapsedColumn(), note, console=_terminal()) as bars:
        yield Watch(bars)


class Watch:
    """Follows work that reports how far it is, under one or several labels.

    Args:
        bars: where the bars are drawn; None: plain lines.
    """

    def __init__(self, bars: Progress | None) -> None:
        self._bars = bars
        self._tasks: dict[str, TaskID] = {}
        self._last: dict[str, float] = {}

    def show(self, label: str, done: int, total: int, note: str = "", *, now: bool = False) -> None:
        """Says that ``done`` of ``total`` are done.

        Args:
            label: which work.
            done: steps behind us.
            total: steps in all.
            note: what goes behind it.
            now: elsewhere than on a terminal, a line at once and not only every ten seconds.
        """
        if self._bars is None:
            self._line(label, f"{label}: {done}/{total} {note}".rstrip(), now=now)
            return
        if label not in self._tasks:
            self._tasks[label] = self._bars.add_task(label, total=total, note=note)
        self._bars.update(self._tasks[label], completed=done, total=total, note=note)

    def _line(self, label: str, text: str, *, now: bool) -> None:
        moment = time.monotonic()
        if now or moment - self._last.get(label, -QUIET_SECONDS) >= QUIET_SECONDS:
            self._last[label] = moment
            say(text)


def _terminal() -> Console:
    return Console(file=sys.stderr)
