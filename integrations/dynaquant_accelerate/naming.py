"""Accelerate's automatic checkpoint naming, and what saves that died leave in its way."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from accelerate.utils import broadcast_object_list

from dynaquant_accelerate.folders import is_unfinished, newest, number_of, put_sign
from dynaquant_core.config import require
from dynaquant_core.errors import EmptyStoreError
from dynaquant_core.plugins import PluginRun

__all__ = ["Naming"]

#: How Accelerate names checkpoints.
_NUMBERED = re.compile(r"checkpoint_(\d+)")

NO_FOLDER = "load_state: give the folder of a checkpoint, as automatic_checkpoint_naming is off."


class Naming:
    """The folder ``project_dir/checkpoints`` of one accelerator.

    Args:
        accelerator: whose.
    """

    def __init__(self, accelerator: Any) -> None:
        self._accelerator = accelerator

    @property
    def automatic(self) -> bool:
        """Whether Accelerate names checkpoints itself."""
        return bool(self._accelerator.project_configuration.automatic_checkpoint_naming)

    @property
    def parent(self) -> Path:
        """Where it puts them."""
        return Path(self._accelerator.project_dir or ".") / "checkpoints"

    def newest(self) -> str | None:
        """The newest checkpoint that is whole, as this process sees it; None where there is none."""
        return newest(self.parent)

    def folder(self, given: str | None) -> Path:
        """The folder that ``load_state`` is to read; without a given one every process calls it.

        Raises:
            EmptyStoreError: automatic naming, and nothing there that is whole.
            ConfigError: no folder was given and Accelerate names none.
        """
        if given is not None:
            return Path(given).expanduser()
        require(self.automatic, NO_FOLDER)
        [found] = broadcast_object_list([self.newest()])  # the main process's holds for all
        if found is None:
            raise EmptyStoreError(
                f"there is no whole checkpoint in {str(self.parent)!r} yet: start without load_state."
            )
        return Path(found)

    @contextmanager
    def nothing_goes(self) -> Iterator[None]:
        """Inside the context Accelerate removes nothing: it would before the new checkpoint is whole."""
        project = self._accelerator.project_configuration
        limit, project.total_limit = project.total_limit, None
        try:
            yield
        finally:
            project.total_limit = limit

    @contextmanager
    def claimed(self, look: Callable[[Path], None]) -> Iterator[None]:
        """Inside the context a save signs its folder before hooks of the user write into it.

        One that dies in such a hook would leave a folder that nobody can tell from the user's own.

        Args:
            look: called on the main process with the folder, before anything is written there.
        """
        hooks = self._accelerator._save_model_state_pre_hook
        main = self._accelerator.is_main_process

        def claim(_models: Any, _weights: Any, folder: str) -> None:
            if main:
                look(Path(folder))
            if main and self.automatic:  # a folder that the user names is no obstacle
                put_sign(Path(folder))

        handle = self._accelerator.register_save_state_pre_hook(claim)
        hooks.move_to_end(handle.id, last=False)
        try:
            yield
        finally:
            handle.remove()

    def rotate(self, run: PluginRun) -> None:
        """Removes what is over ``total_limit``, after the saves under way and only if they succeed."""
        limit = self._accelerator.project_configuration.total_limit
        if not self.automatic or limit is None:
            return
        inside = [path for path in self.parent.iterdir() if path.is_dir() and number_of(path) is not None]
        for folder in sorted(inside, key=lambda path: number_of(path) or 0)[: -max(1, limit)]:
            run.remove(folder)

    def clear_the_way(self) -> None:
        """Removes what a save that died left where the next checkpoint goes: Accelerate would stop there."""
        target = self.parent / f"checkpoint_{self._accelerator.save_iteration}"
        if self.automatic and self._accelerator.is_main_process and is_unfinished(target):
            shutil.rmtree(target)

    @contextmanager
    def numbered_together(self) -> Iterator[None]:
        """A save that fails inside takes no number: on another process it may have got so far as to."""
        project = self._accelerator.project_configuration
        before = project.iteration
        try:
            yield
        except BaseException:
            project.iteration = before
            raise

    def go_on_after(self, folder: Path) -> None:
        """Lets the numbers go on after the checkpoint that was loaded, and after those that came after it."""
        parent = self.parent.resolve()
        inside = folder if folder.parent.resolve() == parent else folder.resolve()
        loaded = number_of(inside)
        if not self.automatic or loaded is None or inside.parent.resolve() != parent:
            return
        project = self._accelerator.project_configuration
        found = (_NUMBERED.fullmatch(path.name) for path in parent.iterdir() if not is_unfinished(path))
        taken = [project.iteration - 1, loaded, *(int(one[1]) for one in found if one)]
        project.iteration = max(taken) + 1
