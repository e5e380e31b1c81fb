"""The runs behind one CheckpointIO, and which of them a folder belongs to while it is being written."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final
from weakref import WeakSet

from dynaquant_core import CheckpointInfo
from dynaquant_core.plugins import PluginOptions, PluginRun, is_checkpoint
from dynaquant_core.plugins.underway import await_saves
from dynaquant_lightning.paths import local
from dynaquant_lightning.reading import FRAMEWORK
from dynaquant_lightning.tree import has_moments, homes_of

__all__ = ["Runs", "settled"]

#: Every one of this process, for loaders that know of no Trainer.
_all: WeakSet[Runs] = WeakSet()

#: How long a forked child waits for its parent's save.
MOST_SECONDS: Final = 60.0


class Runs:
    """One run for checkpoints with an optimizer's state and one for those without: a delta needs its like.

    Args:
        options: of both.
        report: told of each commit.
    """

    def __init__(self, options: PluginOptions, report: Callable[[CheckpointInfo], None]) -> None:
        self.process = os.getpid()
        self._options = options
        self._report = report
        self._runs: dict[bool, PluginRun] = {}
        self._watched: tuple[Any, Any, Any] | None = None
        self._owners: dict[Path, PluginRun] = {}  # of folders that may not be complete yet
        self._newest: PluginRun | None = None  # that began the last save
        _all.add(self)

    def serving(self, checkpoint: Mapping[str, Any]) -> PluginRun:
        """The run of checkpoints like this one, told where its weights lie."""
        run = self.of(moments=has_moments(checkpoint))
        run.compress_only(*homes_of(checkpoint))
        return run

    def of(self, *, moments: bool) -> PluginRun:
        """The run of checkpoints with, or without, an optimizer's state."""
        if moments not in self._runs:
            self._runs[moments] = PluginRun(self._options, framework=FRAMEWORK, report=self._report)
            self._watch(self._runs[moments])
        return self._runs[moments]

    def watch(self, model: Any, optimizers: Any, evaluate: Callable[..., Any] | None) -> None:
        """As `PluginRun.watch`, for both."""
        self._watched = model, optimizers, evaluate
        for run in self._runs.values():
            self._watch(run)

    def watches_another(self, model: Any) -> bool:
        """Whether a model is watched, and it is not this one."""
        return self._watched is not None and self._watched[0] is not model

    def begin(self, folder: str, checkpoint: Mapping[str, Any]) -> PluginRun:
        """The run that is to write ``checkpoint`` to ``folder``, which is pending from now on."""
        run = self.serving(checkpoint)
        self._newest = run
        if run.enabled:
            self.process, self._owners[_key(folder)] = os.getpid(), run
        return run

    def owner(self, folder: Any) -> PluginRun | None:
        """The run that may be writing ``folder``; None where nothing is pending."""
        return self._owners.get(_key(folder))

    def remove(self, folder: str) -> None:
        """Removes a folder behind the saves that may need it: its own, and the last, which replaces it."""
        own = self._owners.pop(_key(folder), None)
        run = self._newest or self.of(moments=True)
        if own is not None and own is not run:
            own.wait()
        run.remove(folder)

    def wait(self) -> None:
        """Waits until everything is written; raises SaveError if something was not."""
        self._owners.clear()
        for run in self._runs.values():
            run.wait()

    def _watch(self, run: PluginRun) -> None:
        if self._watched is not None:
            model, optimizers, evaluate = self._watched
            run.watch(model, optimizers, evaluate=evaluate)

    def __getstate__(self) -> dict[str, Any]:
        """Without what cannot travel to another process, where a new run begins."""
        return {**vars(self), "_runs": {}, "_owners": {}, "_newest": None, "_watched": None, "process": None}


def settled(path: Any) -> Any:
    """``path``, once nothing of this process, or of the rank that writes, is writing there any more.

    In a forked child, once its parent has written it; where that takes longer than a minute, whoever reads
    says what is wrong with it.

    Raises:
        SaveError: what was being written there, or before it, failed.
    """
    if isinstance(path, (str, os.PathLike)):
        for runs in list(_all):
            if runs.owner(path) is not None:
                runs.wait()
                if runs.process != os.getpid():
                    _await_other(path)
        if any(runs.process == os.getpid() for runs in _all):  # a forked child has no connection of its own
            await_saves()
    return path


def _await_other(path: str | os.PathLike[str]) -> None:
    """Waits for a folder that another process is writing."""
    end = time.monotonic() + MOST_SECONDS
    while not is_checkpoint(local(path)) and time.monotonic() < end:
        time.sleep(0.05)


def _key(folder: Any) -> Path:
    return Path(os.path.realpath(local(folder)))
