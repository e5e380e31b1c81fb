"""What a writer says in the log of the states that it is given, each thing once."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from dynaquant_core.store.covering import idle_patterns
from dynaquant_core.store.hints import idle_hints
from dynaquant_core.store.parts import Settings
from dynaquant_core.store.prepare import Prepared

__all__ = ["Remarks"]

logger = logging.getLogger(__name__)


class Remarks:
    """Of one writer's saves.

    Args:
        level: of what is said of patterns of ``exact=``, gradients and models that fit nothing; a framework's
            own may.
    """

    def __init__(self, level: int = logging.WARNING) -> None:
        self._level = level
        self._begun = False
        self._told: set[str] = set()

    def on(
        self, prepared: Prepared, settings: Settings, gradients: Mapping[str, Tensor] | None, model: Any
    ) -> None:
        """Says, at the first save, what was given for nothing; and of each tensor that is not coded, why."""
        if not self._begun:
            self._begun = True
            tensors = {leaf.name: leaf.tensor for leaf in prepared.tree.leaves}
            idle = idle_patterns(prepared.tree, settings.exact)
            for line in idle + idle_hints(tensors, gradients, model):
                logger.log(self._level, "%s", line)
        self._tell("the method does not take them", prepared.division.refused)
        self._tell("they lie in memory that cannot be written", sorted(prepared.unwritable))

    def _tell(self, why: str, names: Sequence[str]) -> None:
        fresh = [name for name in names if name not in self._told]
        if fresh:
            self._told.update(fresh)
            logger.info("kept bit for bit, as %s: %s", why, ", ".join(fresh))
