"""From a store to a running training: load, check, put back."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from dynaquant_core.errors import ConfigError, EmptyStoreError, StateMismatchError
from dynaquant_core.search.memory import SearchState
from dynaquant_core.store.info import CheckpointInfo
from dynaquant_core.store.native import whole_number
from dynaquant_core.store.store import CheckpointStore
from dynaquant_core.training.restore import put_back
from dynaquant_core.training.subject import Subject, require_parts

__all__ = ["Resumed", "resume", "search_state"]

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Resumed:
    """Where a run goes on.

    Args:
        step: completed optimizer steps.
        search: what the search knew then.
    """

    step: int
    search: SearchState


def resume(
    store: CheckpointStore, subject: Subject, step: int | None, fresh: str | Iterable[str] = ()
) -> Resumed | None:
    """Loads a checkpoint and puts it back.

    Args:
        store: where from.
        subject: the run to restore.
        step: None: the newest whole one.
        fresh: parts of the run that stay as they are where the checkpoint has none.

    Returns:
        None, and nothing touched, where ``step`` is None and there is no checkpoint yet.

    Raises:
        ConfigError: ``fresh`` names what is no part of the run.
        StateMismatchError: it is no training state, or not of this run; nothing was touched.
        Others as `CheckpointStore.load`.
    """
    allowed = require_parts(subject, fresh)
    try:
        tree = store.resume(step)
    except EmptyStoreError:
        if step is None and store.newest() is None:
            return None
        raise
    completed = _completed(tree)
    put_back(subject, tree, allowed)
    return Resumed(completed, search_state(store.loaded))


def _completed(tree: Any) -> int:
    missing = [key for key in ("step", "model") if not isinstance(tree, Mapping) or key not in tree]
    if missing:
        raise StateMismatchError(
            f"the checkpoint is not the state of a training run "
            f"({' and '.join(map(repr, missing))} {'are' if len(missing) > 1 else 'is'} missing): load it "
            f"with CheckpointStore.load; nothing was restored."
        )
    completed = whole_number(tree["step"])
    if completed is None or completed < 0:
        raise StateMismatchError(
            f"the checkpoint's 'step' must be a whole number of completed optimizer steps, 0 or more, and is "
            f"{str(tree['step'])[:60]!r}: save it as one, or load it with CheckpointStore.load; nothing was "
            f"restored."
        )
    return completed


def search_state(info: CheckpointInfo | None) -> SearchState:
    """What the search recorded; a new search where there is no record, or one of another version.

    After a restore little has moved yet, so something bolder is tried at the next checkpoint (ours).
    """
    recorded = None if info is None else info.report.get("search_state")
    if recorded is None:
        return SearchState()
    try:
        return replace(SearchState.from_dict(recorded), eager=True)
    except ConfigError as error:
        logger.warning("the search begins anew: %s", error)
        return SearchState()
