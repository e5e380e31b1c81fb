"""What a search comes to, and how it is told."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any

from dynaquant_core.methods.base import Draft
from dynaquant_core.search.memory import SearchState
from dynaquant_core.search.quality import Degradation, Quality

__all__ = ["Decision", "announce"]

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Decision:
    """What to store at this checkpoint, and how it was found.

    Args:
        draft: the chosen draft.
        config: its configuration.
        quality: what evaluate gave on its decoded tensors.
        degradation: against the reference, with its standard error.
        met: whether the mean degradation is within the threshold; a choice always is, unless it is blind.
        beyond: nothing in the cube met the threshold; the choice lies beyond it.
        evaluations: candidates measured at this checkpoint, the reference not counted.
        exhaustive: whether the whole cube was searched.
        state: to be kept with the checkpoint and given to the next search.
        allowed: the degradation that the search went by: the threshold, or its share of what is learnt.
        blind: evaluate does not depend on what is stored, or does not show it yet (an F1 that is still 0), so
            the choice is the space's fixed careful point, which was not measured; degradation says nothing.
        said: the search before came to the same.
    """

    draft: Draft
    config: Any
    quality: Quality
    degradation: Degradation
    met: bool
    beyond: bool
    evaluations: int
    exhaustive: bool
    state: SearchState
    allowed: float
    blind: bool = False
    said: bool = False

    def report(self, reference: Quality) -> dict[str, Any]:
        """The search's record as JSON-ready data, stored with the checkpoint.

        Of a blind choice it does not say that the threshold is met, nor by how much.  Its quality is true:
        what evaluate measures is the same whatever is stored (an average that is kept exact).

        Args:
            reference: quality of the uncompressed state on the same batches.
        """
        counted = {
            "quality": {"reference": reference.mean, "search": self.quality.mean},
            "evaluations": self.evaluations,
            "exhaustive": self.exhaustive,
            "search_state": self.state.as_dict(),
        }
        if self.blind:
            return counted
        lost = self.quality.lost
        return ({} if lost is None else lost.report()) | {
            "degradation": self.degradation.mean,
            "degradation_se": self.degradation.se,
            "met": self.met,
            **counted,
        }


def announce(decision: Decision) -> None:
    """Says in the log what was chosen, and aloud, once, where the space could not keep the threshold."""
    say = logger.info if decision.said else logger.warning
    if decision.blind:
        yet = " or, while it is 0, does not show it" if not any(decision.quality.values) else ""
        say(
            "evaluate gave the same value for the model itself, for coarse weights and for spoilt ones: it "
            "does not depend on what is stored%s, so nothing is promised; storing with the fixed "
            "configuration %s.", yet, decision.config,
        )  # fmt: skip
        return
    if decision.beyond:
        say(
            "no configuration of the search space keeps degradation within %g; storing with %s.",
            decision.allowed, decision.config,
        )  # fmt: skip
    logger.info(
        "chose %s: degradation %.3g (allowed %g), %d evaluated%s.",
        decision.config, decision.degradation.mean, decision.allowed, decision.evaluations,
        ", whole cube searched" if decision.exhaustive else "",
    )  # fmt: skip
