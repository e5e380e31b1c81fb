"""How ranks may measure: each a candidate of its own, or all the same one.

Sharing takes an ``evaluate`` that is a rank's own affair and gives the same on every rank.  So at first all
ranks measure the same, the model as it is and candidates, and what each got is compared, until that has told
enough: a metric of whole counts is the same by chance now and then, and one at its end, all right or all
wrong, says nothing.  What they agreed on may change in a run (an average over all ranks after a warm-up), so
collectives are looked for in every answer, and values are compared wherever two ranks measure the same.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Literal

from torch.distributed import distributed_c10d

from dynaquant_core.search.quality import Lost, Quality

__all__ = ["FEWEST_SIZES", "Manner", "Note", "Terms", "quality_of", "traffic"]

logger = logging.getLogger(__name__)

#: "apart": each rank measures a candidate of its own; "unison": all measure the same.
Manner = Literal["apart", "unison"]

#: What a rank writes for the others, JSON-ready.
Note = dict[str, Any]

#: Two ranks' values for the same model are the same where they differ by less than this share of what the
#: threshold allows.
SAME = 0.01

#: Values, each another, in which the ranks have to agree before each measures a candidate of its own.
ENOUGH = 3

#: Candidates that rank 0 sizes at least to look ahead.
FEWEST_SIZES = 8


@dataclass(slots=True)
class Terms:
    """On what terms the ranks share a run's searches; each search leaves them better known.

    Args:
        manner: how the ranks may measure; None: not settled yet, and in unison meanwhile.
        sizes: how many candidates rank 0 may size for looking ahead.
        agreed: values other than 0 that all ranks have got alike.
    """

    manner: Manner | None = None
    sizes: int = 2 * FEWEST_SIZES
    agreed: set[float] = field(default_factory=set)

    def compare(self, answers: Sequence[Note], jobs: int, threshold: float) -> None:
        """Learns from what each rank got, where they did so many jobs in turn."""
        if self.manner == "unison":
            return
        alike = ({rank: answers[rank] for rank in range(job, len(answers), jobs)} for job in range(jobs))
        first = quality_of(answers[0])
        if any(_differ(of_ranks, threshold) for of_ranks in alike):
            self.manner = "unison"
        elif self.manner is None and first.finite and first.mean:
            self.agreed.add(first.mean)
            self.manner = "apart" if len(self.agreed) >= ENOUGH else None


def quality_of(answer: Note) -> Quality:
    """What a rank that has measured answers with."""
    lost = answer["lost"]
    return Quality(tuple(answer["values"]), None if lost is None else Lost(*lost))


def traffic() -> list[int]:
    """How many collectives each process group has begun, where it counts them."""
    counts = []
    for group in distributed_c10d._world.pg_map:
        with suppress(RuntimeError):
            counts.append(group._get_sequence_number_for_group())  # type: ignore[attr-defined]
    return counts


def _differ(answers: Mapping[int, Note], threshold: float) -> bool:
    """Whether ``evaluate`` is no rank's own affair, or not the same on each; the log says so."""
    if any(answer["collective"] for answer in answers.values()):
        logger.info("evaluate uses collectives: every rank measures every candidate.")
        return True
    one = min(answers)
    first = quality_of(answers[one])
    for rank, answer in answers.items():
        other = quality_of(answer)
        close = abs(other.mean - first.mean) <= SAME * threshold * abs(first.mean)
        if first.finite and not (close and len(other.values) == len(first.values)):
            logger.warning(
                "evaluate gives %.6g on rank %d and %.6g on rank %d for the same weights, so the search is "
                "not shared and rank 0's values count; give every rank the same batches.",
                first.mean, one, other.mean, rank,
            )  # fmt: skip
            return True
    return False
