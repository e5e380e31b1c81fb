"""What a framework's plugin talks to: one run whose checkpoints are the framework's own folders."""

from __future__ import annotations

import logging
import os
import time
from collections import deque
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch

from dynaquant_core.errors import DynaQuantError
from dynaquant_core.plugins.agreement import deadline, ranks, require_all_well, tell_commit
from dynaquant_core.plugins.deciding import Chosen, Decider
from dynaquant_core.plugins.folder import Filling, copy_checkpoint, remove_folder, replacing
from dynaquant_core.plugins.line import Line
from dynaquant_core.plugins.local_path import local_path
from dynaquant_core.plugins.marker import Marker, versions_of
from dynaquant_core.plugins.options import PluginOptions
from dynaquant_core.plugins.reading import on_marker, with_rest
from dynaquant_core.plugins.rest import split
from dynaquant_core.plugins.underway import Ended, await_saves, begin
from dynaquant_core.plugins.watched import Models, Optimizers, Watched
from dynaquant_core.store.info import CheckpointInfo
from dynaquant_core.store.saving import Sealed
from dynaquant_core.training.disabled import DISABLE, is_disabled
from dynaquant_core.training.early import look_at_threads
from dynaquant_core.training.resume import search_state
from dynaquant_core.training.tolerance import told

__all__ = ["PluginRun"]

logger = logging.getLogger(__name__)


class PluginRun:
    """Saves into folders that a framework names and removes as it likes, and loads from them.

    Each folder stands alone: it holds, hard-linked, every file that its checkpoint builds on.  The calling
    thread drafts and searches; encoding and committing happen on one background thread, in order with copies
    and removals.  Saving changes nothing of the training, bit for bit.

    Args:
        options: how checkpoints are made.
        framework: whose they are, as "lightning"; written into each.
        report: called on the training thread with the info of each checkpoint once it is committed.

    Attributes:
        enabled: False where DYNAQUANT_DISABLE is set: nothing is saved, copied or removed, loading works.
        last: the checkpoint committed last; None before the first.

    Example:
        >>> model = torch.nn.Linear(8, 2)
        >>> run = PluginRun(PluginOptions(exact=("*",)), framework="none")
        >>> run.watch(model, [])
        >>> run.save("step-1.ckpt", 1, {"model": model.state_dict()})
        >>> run.wait().step, list(run.load("step-1.ckpt")["model"])
        (1, ['weight', 'bias'])
        >>> run.close()
    """

    def __init__(
        self,
        options: PluginOptions,
        *,
        framework: str,
        report: Callable[[CheckpointInfo], None] | None = None,
    ) -> None:
        self.enabled = not is_disabled()
        look_at_threads()
        deadline()  # said now where the environment has a wrong one, not after hours
        self.last: CheckpointInfo | None = None
        self._framework, self._versions = framework, versions_of(framework)
        self._report = report
        self._raises = options.on_error == "raise"
        self._trail = options.trail()
        self._watched = Watched(options, self._trail.method)
        self._line = Line()
        self._decider = Decider(self._trail, self._watched)
        self._chosen: tuple[int, Any, Chosen] | None = None  # step and state it was made for, and the choice
        self._shares = False  # whether the ranks of this job search together
        self._ended: Ended | None = None  # of the save that the other ranks know to be coming
        self._failed = False  # whether the last save never came to the line
        self._committed: deque[CheckpointInfo] = deque()
        if not self.enabled:
            logger.warning("%s is set: no checkpoint is saved", DISABLE)

    # -- what is trained ---------------------------------------------------------------------------

    def watch(
        self, model: Models, optimizers: Optimizers, *, evaluate: Callable[..., Any] | None = None
    ) -> None:
        """Watches a model and its optimizers; the same ones again change nothing, others replace them.

        Args:
            model: a module, or name -> module.
            optimizers: whose steps end with the gradients to average; one, several, or by name.
            evaluate: the framework's own measure, used where the options have none.

        Raises:
            ConfigError: something is no model, no optimizer or no function, or a model is sharded.
        """
        self._watched.set(model, optimizers if self.enabled else (), evaluate)

    def keep_exact(self, pattern: str) -> None:
        """Keeps what a pattern of names covers bit for bit, beside what the options name, from now on."""
        self._trail.keep_exact(pattern)

    def compress_only(self, *homes: str) -> None:
        """Keeps exact what lies outside of these parts and is no copy of a weight (`store.elsewhere`)."""
        self._trail.compress_only(homes)

    def look_ahead(self, steps_left: int | None) -> None:
        """Tells how many optimizer steps are left until the next save.

        Args:
            steps_left: 0 or more; None: unknown, nothing is recorded and Adam's moments serve.

        Raises:
            SaveError: a save in the background failed since the last call.  Several ranks hear of it
                together, in `meet` or `choose`: here the others would be left in what they exchange.
        """
        self._tell()
        if ranks() == 1:
            with told(raises=self._raises):
                self._line.check()
        self._watched.follow(steps_left)

    # -- saving ------------------------------------------------------------------------------------

    def meet(self, step: int, come: Callable[[int, Exception | None], None] = require_all_well) -> None:
        """`wait` for all ranks together: before a save in which they wait for each other.

        Args:
            step: completed optimizer steps.
            come: how they come together, as `Meeting.come` where every process counts and calls by itself.

        Raises:
            SaveError: something failed since the last call, here or on another rank, which it names.
            EvaluationError: a rank is silent for as long as the deadline; names it.
        """
        if not self.enabled:
            return
        self._chosen, self._shares, problem = None, ranks() > 1, None
        try:
            self._settle()
        except DynaQuantError as error:
            problem = error
        with told(raises=self._raises):
            come(step, problem)

    def choose(self, step: int, tree: Any) -> None:
        """Searches for what the save of ``step`` that follows will store.

        With more than one rank this is a collective: all ranks call it, and the rank that writes saves.  It
        saves without waiting for another rank: where the search failed, the others do not come back from
        here, and what is saved is the exact checkpoint that they are waiting for.

        Args:
            step: completed optimizer steps.
            tree: as it will be given to `save`; its tensors are the model's own.  The same object, unchanged,
                is not looked through again.

        Raises:
            DynaQuantError: as `save`; the next save then searches by itself; of several ranks it is exact.
        """
        if not self.enabled:
            return
        self._chosen, self._shares = None, ranks() > 1
        problem = None
        try:
            self._settle()  # the next delta is drafted against the checkpoint that is being written
            plain, _ = split(tree)
        except Exception as error:  # noqa: BLE001 - raised below, when the others know
            problem, plain = error, None
        try:
            with told(raises=self._raises):
                chosen = self._decider.together(step, plain, problem, self._announce)
                self._chosen = None if chosen is None else (step, tree, chosen)
        except BaseException:
            self._end()  # no save follows
            raise

    def save(
        self,
        folder: str | os.PathLike[str],
        step: int,
        tree: Any,
        *,
        note: Mapping[str, str] | None = None,
    ) -> None:
        """Saves a state as the checkpoint ``folder``; when this returns, the state may change again.

        Args:
            folder: is made, or filled beside what others put there; a checkpoint in it is replaced.
            step: completed optimizer steps.
            tree: the state; its tensors are the model's own.  Objects of any class may be in it.
            note: what the plugin wants to find in the checkpoint's marker again.

        Raises:
            SaveError: the save before failed in the background; nothing was saved now.
            EvaluationError: evaluate failed; an exact checkpoint was committed instead.
            UnsupportedStateError: the state holds what can be saved in no way.
            DynaQuantError: this save failed on this thread; training may go on.
        """
        if not self.enabled:
            return
        started = time.perf_counter()
        self._failed = True
        awaited = self._awaited()
        self._announce()
        try:
            self._settle()  # never two saves in memory, and a delta needs its base
            with told(raises=self._raises):
                self._save(local_path(folder), step, tree, started, note or {})
        finally:
            self._end()
            if awaited is not None:
                tell_commit(awaited)
            self._chosen = None
            self._watched.begin_interval()

    def copy(
        self,
        source: str | os.PathLike[str],
        target: str | os.PathLike[str],
        *,
        note: Mapping[str, str] | None = None,
    ) -> None:
        """Gives a checkpoint a second folder, after the saves that are under way; hard links where it can.

        The copy has the ``note`` that is given, else that of the source.  What goes wrong is told by
        the next call, as for a save.
        """
        if self.enabled:
            job = partial(copy_checkpoint, local_path(source), local_path(target), note)
            self._line.put(f"the copy of {source} to {target}", job, begin())

    def remove(self, folder: str | os.PathLike[str], *, only_if: Callable[[], bool] = lambda: True) -> None:
        """Removes a folder, or a native file, after the saves that are under way, ``only_if`` still so then.

        It stays, and the log says so, where one of those saves fails, or the last one failed before it was
        under way: it may be the last whole one.
        """
        why = f"{DISABLE} is set" if not self.enabled else "the save before it failed" if self._failed else ""
        if why:
            logger.warning("%s is not removed, as %s", folder, why)
            return
        job = partial(_remove, local_path(folder), only_if)
        job() if self._line.idle else self._line.put(f"the removal of {folder}", job)

    # -- loading -----------------------------------------------------------------------------------

    def load(
        self,
        folder: str | os.PathLike[str],
        *,
        device: str | torch.device | None = None,
        weights_only: bool = True,
    ) -> Any:
        """The state as it was given to `save`; the next save may be a delta against it.

        Waits for saves under way, also of another rank.  Arguments and errors as `reading.read_tree`.
        """
        self._line.join()
        await_saves()
        self._chosen = None  # made against another base
        place = local_path(folder)

        def action(marker: Marker) -> Any:
            tree = self._trail.load(place, marker.link, device)
            return with_rest(place, marker, tree, weights_only=weights_only)

        tree = on_marker(place, action)
        self._watched.use_method(self._trail.method)
        self._watched.chooser.state = search_state(self._trail.loaded)
        self._watched.begin_life()
        return tree

    def stand_alone(self) -> None:
        """Makes the next save build on nothing; its method and what searches have learnt stay.

        For checkpoints that leave out much of what was loaded: a delta would keep all of that beside it.
        """
        self._line.join()
        self._chosen = None
        self._trail.forget()

    # -- ending ------------------------------------------------------------------------------------

    def wait(self) -> CheckpointInfo | None:
        """Waits until everything in the background, the writer's too, is done; returns the last one's info.

        Raises:
            SaveError: something failed since the last call.
        """
        self._settle()
        await_saves()
        return self.last

    def close(self) -> None:
        """Waits, takes hooks off and lets go of the model and of open files; the run can be used again.

        Raises:
            SaveError: something failed since the last call.
        """
        try:
            self.wait()
        finally:
            self._chosen = None
            self._end()
            self._watched.close()
            self._trail.forget()

    # -- inside ------------------------------------------------------------------------------------

    def _announce(self) -> None:
        """Tells the other ranks that a save is under way, before one of them can look for it."""
        if self._ended is None:
            self._ended = begin()

    def _end(self) -> None:
        """Tells them that the one announced is not, unless that is for the background to tell."""
        if self._ended is not None:
            self._ended()
            self._ended = None

    def _awaited(self) -> int | None:
        """The step for whose commit other ranks wait, since its search ended in an error; None: for none."""
        if self._chosen is None:
            return None
        step, _, chosen = self._chosen
        return None if chosen.choice.error is None else step

    def _save(self, folder: Path, step: int, tree: Any, started: float, note: Mapping[str, str]) -> None:
        plain, rest = split(tree)
        data = rest.as_bytes() if rest else None
        of_step, of_tree, before = self._chosen or (None, None, None)
        begun = time.perf_counter()
        if before is None or of_step != step or of_tree is not tree:
            before = self._decider.final(
                step, plain, before if of_step == step else None, shares=self._shares
            )
        chosen = before
        sealing = time.perf_counter()
        sealed = chosen.saving.seal(chosen.choice.draft, chosen.choice.report)
        now = time.perf_counter()
        sealed.report["seconds"] = {
            "collector": self._watched.seconds(),
            "held": begun - started + chosen.held + now - sealing,
            "search": chosen.choice.search_seconds,
            "draft": chosen.choice.draft_seconds + now - sealing,
        }
        error = chosen.choice.error
        del chosen, before, plain, of_tree
        self._chosen = None  # the job must not keep what refers to the live state
        job = partial(self._commit, sealed, replacing(folder), data, note)
        ended, self._ended = self._ended or begin(), None
        self._line.put(f"the save of step {step} to {folder}", job, ended)
        self._failed = False
        if error is not None:
            self._line.wait()
            raise error

    def _commit(self, sealed: Sealed, filling: Filling, rest: bytes | None, note: Mapping[str, str]) -> None:
        """Runs on the background thread."""
        with filling as place:
            info, link = self._trail.commit(sealed, place.folder)
            file = None if rest is None else place.write_rest(rest)
            place.settle(Marker(self._framework, link, self._versions, file, note), self._trail.names)
        self.last = info
        self._committed.append(info)

    def _settle(self) -> None:
        """Waits for the background, and tells what became of it."""
        self._line.join()
        self._tell()
        with told(raises=self._raises):
            self._line.check()

    def _tell(self) -> None:
        while self._committed:
            info = self._committed.popleft()
            if self._report is not None:
                self._report(info)


def _remove(folder: Path, only_if: Callable[[], bool]) -> None:
    try:
        if only_if():
            remove_folder(folder)
    except DynaQuantError as error:
        logger.warning("an old checkpoint could not be removed: %s", error)
