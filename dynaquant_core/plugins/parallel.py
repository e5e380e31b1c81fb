"""One search shared by all ranks of a data-parallel job (ours).

Rank 0 runs the search; in each round every rank measures one candidate in its own model: the one that the
search asks for, and those that it is likely to ask for next (`search.speculate`).  The decision is the one
that rank 0 would have come to alone.
"""

from __future__ import annotations

import math
from collections import Counter
from typing import Protocol
from weakref import WeakKeyDictionary

from torch import distributed

from dynaquant_core.config import require, require_number
from dynaquant_core.plugins.agreement import OWN_SHARE
from dynaquant_core.plugins.board import Board
from dynaquant_core.plugins.manner import Terms
from dynaquant_core.plugins.of_group import OfGroup
from dynaquant_core.plugins.team import follow, lead
from dynaquant_core.training.choice import Choice, Chooser, Drafting, Question, Verdict

__all__ = ["choose_together"]

#: Step -> searches begun at it: names that no search before has used, the same on all ranks.
_begun: OfGroup[Counter[int]] = OfGroup(Counter)

#: What rank 0 has learnt about sharing a run's searches.
_learnt: WeakKeyDictionary[Chooser, Terms] = WeakKeyDictionary()


class _Save(Drafting, Protocol):
    @property
    def step(self) -> int:
        """Completed optimizer steps."""
        ...


def choose_together(chooser: Chooser, saving: _Save, deadline: float) -> Choice:
    """`Chooser.choose` with the evaluations shared among the ranks; every rank calls it at every save.

    The choice, its report and the chooser's new state are the same on every rank and equal those that rank 0
    would have found alone; rank 0's is the one to write.  The ranks' weights, gradients and bases are
    taken to be equal, as data parallelism keeps them.  No collective is used, of torch's, that is:
    ``evaluate`` may use them, and then every rank measures every candidate.

    Where a rank fails or is silent the choice is the exact draft, on every rank, and its ``error`` names the
    rank.  A rank is silent once rank 0 has waited for it for three quarters of the deadline; rank 0 is, once
    another has waited for the whole of it.  What ``evaluate`` itself waits for, its own collectives say.

    Args:
        chooser: of this rank.
        saving: of this rank, at the same step.
        deadline: seconds, above 0.

    Raises:
        ConfigError: ``deadline`` is out of range.
    """
    require_number("DynaQuant", "deadline", deadline, 0, math.inf, open_high=True)
    require(deadline > 0, "DynaQuant: deadline must be above 0 seconds.")
    alone = not (distributed.is_available() and distributed.is_initialized())
    if alone or distributed.get_world_size() == 1:
        return chooser.choose(saving)

    def search(question: Question) -> Verdict:
        _begun()[saving.step] += 1
        board = Board(f"{saving.step}.{_begun()[saving.step]}", deadline)
        if board.rank > 0:
            return follow(board, question, patience=deadline)
        terms = _learnt.setdefault(chooser, Terms())
        return lead(board, question, terms, patience=OWN_SHARE * deadline)

    return chooser.choose(saving, search)
