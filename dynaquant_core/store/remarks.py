"""What a writer says in the log of the states that it is given, each thing once."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from dynaquant_core.store.covering import idle_patterns
from dynaquant_core.store.parts import Settings
from dynaquant_core.store.prepare import Prepared

__all__ = ["Remarks"]

logger = logging.getLogger(__name__)


class Remarks:
    """Of one writer's saves.

    Args:
        level: of what is said of patterns of ``exact=`` that cover nothing; a framework's own may.
    """

    def __init__(self, level: int = logging.WARNING) -> None:
        self._level = level
        self._begun = False
        self._told: set[str] = set()

    def on(self, prepared: Prepared, settings: Settings) -> None:
        """Says, at the first save, which patterns are idle; and of each tensor that is not coded, why."""
        if not self._begun:
            self._begun = True
            for line in idle_patterns(prepared.tree, settings.exact):
                logger.log(self._level, "%s", line)
        self._tell("the method does not take them", prepared.division.refused)
        self._tell("they lie in memory that cannot be written", sorted(prepared.unwritable))

    def _tell(self, why: str, names: Sequence[str]) -> None:
        fresh = [name for name in names if name not in self._told]
        if fresh:
            self._told.update(fresh)
            logger.info("kept bit for bit, as %s: %s", why, ", ".join(fresh))
