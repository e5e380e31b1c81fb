"""The callback: Composer's schedule, rotation and names, with DynaQuant in place of full tensors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, Literal

from composer.core import Event, State, Time, TimeUnit

from dynaquant_composer.guard import require_local, require_uncompressed
from dynaquant_composer.saving import FolderSaver
from dynaquant_core.config import require
from dynaquant_core.plugins import PluginOptions

__all__ = ["DynaQuantCallback"]

#: Parts of Composer's state that are not weights, whatever their tensors look like.
NOT_WEIGHTS: Final = ("state.train_metrics", "state.eval_metrics", "state.dataset_state", "state.callbacks")


class DynaQuantCallback(FolderSaver):
    """Saves Composer checkpoints 10 to 100 times smaller, within a promised loss of quality.

    It takes the place of Composer's own `CheckpointSaver`, so the trainer's ``autoresume`` and ``load_path``
    work as they do there.  A checkpoint is a file of 1 kB and a folder beside it.

    Args:
        folder: as `CheckpointSaver`; of a file system.
        save_interval: as there: "500ba", "1ep", "0.1dur", "60sec", a number of epochs, or a function.
        filename, latest_filename, overwrite, num_checkpoints_to_keep, weights_only, ignore_keys: as there.
        metric: name of the evaluators' metric to search by; None: the first that fits ``mode``.
            Evaluators without it are left out, and the log names them.
        evaluate: instead of the evaluators: takes nothing, or the model; returns a number, or one a batch, on
            fixed held-out batches, the same on every rank.  With neither evaluators nor this a fixed careful
            configuration is used.
        threshold: allowed relative degradation at each checkpoint, a share (0.01 = 1%).
        mode: whether the metric is to be minimised ("min") or maximised ("max").
        method: name, mapping with a name and options, or method object; None: the project's default.
        moments: policy for optimizer moments: "8bit", "exact", "compact", "minimal", "sparse", "second"
            or "none".
        exact: name patterns kept bit for bit; "*" is everything.
        window: optimizer steps before a save in which gradients are averaged.
        max_chain: deltas after a key checkpoint, at most.
        on_error: whether a save that fails raises ("raise") or is logged ("warn").

    Raises:
        ConfigError: an option is of the wrong type or out of range.
    """

    def __init__(
        self,
        folder: str | Path = "{run_name}/checkpoints",
        save_interval: Time[Any] | str | int | Callable[[State, Event], bool] = "1ep",
        *,
        filename: str | Path = "ep{epoch}-ba{batch}-rank{rank}.pt",
        latest_filename: str | Path | None = "latest-rank{rank}.pt",
        overwrite: bool = False,
        num_checkpoints_to_keep: int = -1,
        weights_only: bool = False,
        ignore_keys: list[str] | Callable[[dict[str, Any]], None] | None = None,
        metric: str | None = None,
        evaluate: Callable[..., Any] | None = None,
        threshold: float = 0.01,
        mode: Literal["min", "max"] = "min",
        method: Any = None,
        moments: str = "8bit",
        exact: str | Sequence[str] = (),
        window: int = 50,
        max_chain: int = 8,
        on_error: Literal["raise", "warn"] = "raise",
    ) -> None:
        require_local(folder)
        require_uncompressed(filename, latest_filename)
        patterns = (exact,) if isinstance(exact, str) else exact
        good = isinstance(patterns, Sequence) and all(isinstance(pattern, str) for pattern in patterns)
        require(good, f"DynaQuantCallback: exact must be name patterns, got {exact!r}.")
        options = PluginOptions(
            evaluate=evaluate,
            threshold=threshold,
            mode=mode,
            method=method,
            moments=moments,
            exact=(*patterns, *NOT_WEIGHTS),
            window=window,
            max_chain=max_chain,
            on_error=on_error,
        )
        super().__init__(
            options,
            None if callable(save_interval) else Time.from_input(save_interval, TimeUnit.EPOCH),
            metric,
            folder=folder,
            filename=filename,
            latest_filename=latest_filename,
            save_interval=save_interval,
            overwrite=overwrite,
            num_checkpoints_to_keep=num_checkpoints_to_keep,
            weights_only=weights_only,
            ignore_keys=ignore_keys,
        )
