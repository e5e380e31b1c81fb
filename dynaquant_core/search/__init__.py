"""Search: the smallest configuration that keeps quality within the threshold, found with few evaluations.

`quality` says how much worse a candidate is, `grid` walks a method's space, `trials` sizes and measures
candidates once each, `guided` searches the whole cube, `neighbourhood` and `bold` go on from the last best,
`beyond` keeps the promise where the cube cannot, `spoilt` finds an evaluate that sees nothing of it, and
`manager` ties them into one call a checkpoint.  A method is seen through its protocol only.
"""

from __future__ import annotations

from dynaquant_core.search.manager import Decision, Manager
from dynaquant_core.search.memory import SearchState
from dynaquant_core.search.quality import Degradation, Goal, Mode, Quality, degradation

__all__ = ["Decision", "Degradation", "Goal", "Manager", "Mode", "Quality", "SearchState", "degradation"]
