"""From a store to a running training: load, check, put back."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dynaquant_core.errors import ConfigError, StateMismatchError
from dynaquant_core.search.memory import SearchState
from dynaquant_core.store.store import CheckpointStore
from dynaquant_core.training.restore import put_back
from dynaquant_core.training.subject import Subject

__all__ = ["Resumed", "resume"]

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
