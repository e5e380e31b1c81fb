"""The `CheckpointIO` through which Lightning and Fabric write and read our folders."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch
from lightning.fabric import is_wrapped
from lightning.fabric.plugins import CheckpointIO, TorchCheckpointIO

from dynaquant_core import CheckpointInfo
from dynaquant_core.config import require
from dynaquant_core.plugins import PluginOptions, Turns, require_whole
from dynaquant_core.plugins.underway import await_saves
from dynaquant_lightning.paths import is_ours, local
from dynaquant_lightning.reading import device_of, only_weights, require_ours, was_with_optimizer
from dynaquant_lightning.runs import Runs
from dynaquant_lightning.tree import from_tree, kind_note, to_tree

__all__ = ["DynaQuantCheckpointIO"]

#: Where a checkpoint says how many steps are complete: Lightning's name, then those that users give.
STEPS = ("global_step", "step", "iteration", "iter_num", "steps", "iter")


class DynaQuantCheckpointIO(CheckpointIO):
    """Writes each checkpoint as a folder of compressed files; reads such folders, and native files too.

    A Trainer gets it from `DynaQuantCallback`.  Fabric takes it as a plugin, and `watch` then tells it what
    to search with.  Files whose names begin with a dot are Lightning's scratch copies and stay native.

    Args:
        threshold, evaluate, mode, method, moments, exact, window, max_chain, on_error: as in
            `dynaquant_core.plugins.PluginOptions`.

    Raises:
        ConfigError: an option is of the wrong type or out of range.

    Example:
        >>> io = DynaQuantCheckpointIO(exact="*", moments="exact")
        >>> io.save_checkpoint({"model": {"weight": torch.ones(4, 4)}, "step": 7}, "step-7.ckpt")
        >>> io.load_checkpoint("step-7.ckpt")["model"]["weight"].sum()
        tensor(16.)
    """

    def __init__(
        self,
        *,
        threshold: float = 0.01,
        evaluate: Callable[..., Any] | None = None,
        mode: Literal["min", "max"] = "min",
        method: Any = None,
        moments: str = "8bit",
        exact: str | Sequence[str] = (),
        window: int = 50,
        max_chain: int = 8,
        on_error: Literal["raise", "warn"] = "raise",
    ) -> None:
        given = {name: value for name, value in locals().items() if name not in {"self", "__class__"}}
        self.runs = Runs(PluginOptions(**given), self.reported)
        self._native = TorchCheckpointIO()
        self._saves = 0
        self.turns = Turns()

    # -- for Fabric --------------------------------------------------------------------------------

    def watch(self, model: Any, optimizers: Any = (), *, evaluate: Callable[..., Any] | None = None) -> None:
        """Tells what is trained, so that saves can be searched and gradients averaged.

        Args:
            model: a module, as it was given to `fabric.setup` or as that returned it, or name -> module.  A
                checkpoint without any of it is exact.
            optimizers: one or several, likewise.
            evaluate: used where the class was given none.

        Raises:
            ConfigError: the model is sharded.
        """
        by_name = model if isinstance(model, Mapping) else {"": model}
        models = {name: _bare(one) for name, one in by_name.items()}
        require_whole(models.values())
        several = optimizers if isinstance(optimizers, Iterable) else [optimizers]
        watched = models if by_name is model else models[""]
        self.runs.watch(watched, [_bare(optimizer) for optimizer in several], evaluate)

    def look_ahead(self, steps_left: int | None) -> None:
        """Optimizer steps until the next save, so that gradients are averaged before it; None: unknown."""
        self.runs.of(moments=True).look_ahead(steps_left)

    def wait(self) -> None:
        """Waits for everything that is being written; raises SaveError if something failed."""
        self.runs.wait()

    # -- CheckpointIO ------------------------------------------------------------------------------

    def save_checkpoint(
        self, checkpoint: dict[str, Any], path: Any, storage_options: Any | None = None
    ) -> None:
        """Saves; when it returns, the folder is whole, on this rank's disk and for every other rank.

        Whoever called may remove the checkpoint before at once, or load this one.  A save that a signal's
        handler asks for in the middle of another follows that one.

        Raises:
            ConfigError: the path is not local, or storage options were given.
            DynaQuantError: this save failed; training may go on.
        """
        require(
            storage_options is None, "storage_options are for remote files; DynaQuant writes local folders."
        )
        require("://" not in local(path), f"{path} is a remote path; save into a local or mounted folder.")
        if not self.takes(checkpoint, path):
            self._native.save_checkpoint(checkpoint, path)
            return
        self.turns.take(partial(self._save_ours, checkpoint, local(path)))

    def _save_ours(self, checkpoint: dict[str, Any], path: str) -> None:
        with torch.inference_mode(False):  # a Trainer also saves from within its validation
            self.save_folder(checkpoint, path)

    def load_checkpoint(
        self, path: Any, map_location: Any = None, weights_only: bool | None = None
    ) -> dict[str, Any]:
        """Loads a folder of ours, against which the next save may be a delta; or a native file.

        Every rank finds what was saved before, though one alone writes.
        """
        if self.runs.owner(path) is not None:
            self.wait()
        await_saves()
        if not (is_ours(path) or Path(local(path)).is_dir()):
            return self._native.load_checkpoint(path, map_location, weights_only)  # type: ignore[no-any-return]
        folder = require_ours(path)
        run = self.runs.of(moments=was_with_optimizer(folder, weights_only))
        tree = run.load(folder, device=device_of(map_location), weights_only=only_weights(weights_only))
        return from_tree(tree, folder)  # type: ignore[no-any-return]

    def remove_checkpoint(self, path: Any) -> None:
        """Removes a folder, or a native file, behind every save that is on its way.

        A native file that joined the run is no less the last whole checkpoint while ours is on its way.
        """
        if not _is_taken(path):
            self._native.remove_checkpoint(path)
        elif self.runs.owner(path) is not None or os.path.lexists(local(path)):
            self.runs.remove(local(path))

    def teardown(self) -> None:
        """Waits for everything that is being written; called at the end of every fit."""
        self.wait()

    # -- what the Trainer's own does otherwise -----------------------------------------------------

    def takes(self, checkpoint: Mapping[str, Any], path: Any) -> bool:  # noqa: ARG002
        """Whether a checkpoint is compressed and not written natively."""
        return _is_taken(path)

    def save_folder(self, checkpoint: dict[str, Any], path: str) -> None:
        """Compresses a checkpoint into the folder ``path``, which is whole when this returns."""
        self.begin_folder(checkpoint, path)
        self.wait()

    def begin_folder(self, checkpoint: dict[str, Any], path: str) -> None:
        """The same, but the folder is on its way when this returns; the live tensors may change."""
        run = self.runs.begin(path, checkpoint)
        run.save(path, self.step_of(checkpoint), to_tree(checkpoint, path), note=kind_note(checkpoint))

    def step_of(self, checkpoint: Mapping[str, Any]) -> int:
        """Completed steps as the checkpoint tells them; where it does not, saves are counted."""
        self._saves += 1
        told = [checkpoint[name] for name in STEPS if name in checkpoint]
        return next((step for step in told if type(step) is int and step >= 0), self._saves)

    def reported(self, info: CheckpointInfo) -> None:
        """Told of each commit."""


def _is_taken(path: Any) -> bool:
    """Whether what is written there is a checkpoint and not a scratch copy of Lightning's own."""
    return not Path(os.fspath(path)).name.startswith(".")


def _bare(wrapped: Any) -> Any:
    """The module or optimizer inside Fabric's wrapper."""
    if not is_wrapped(wrapped):
        return wrapped
    return wrapped.module if hasattr(wrapped, "module") else wrapped.optimizer
