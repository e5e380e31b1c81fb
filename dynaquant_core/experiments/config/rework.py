"""The sections of ``kind: rework``, and what has to hold between them and the rest of the file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field

from dynaquant_core.experiments.config.section import Count, Plain, Section, Whole

__all__ = ["BucketsSection", "ReworkSection", "problem_of"]

#: Keys of saving that have a meaning here, or a sentence of their own.
OWN = frozenset({"method", "failures"})

#: A step of the training; 0 is its start.
Step = Whole


class ReworkSection(Section):
    """``rework:``, failures of a run that takes a checkpoint of one size every few iterations.

    Args:
        size: of a checkpoint, a share of the model: the method's point for it (`rework.point`).
        point: the method's point itself, as ``{bits: 4}``; give one of the two.
        repeats: failures, each of the same run, one at a time.
        between: first and last iteration after which the run may fail, drawn evenly; None: all of them.
        order: ``fresh``: batches after a failure are drawn anew in each repeat; ``same``: those that came.
        most: iterations after which a repeat is given up, and counted as so many.
        flat: the parameters are one array, as in arXiv 2009.13003; else tensor by tensor.
    """

    size: Annotated[float, Field(gt=0.0, le=1.0)] | None = None
    point: dict[str, Plain] | None = None
    repeats: Count = 50
    between: Annotated[list[Count], Field(min_length=2, max_length=2)] | None = None
    order: Literal["fresh", "same"] = "fresh"
    most: Count = 500
    flat: bool = True


class BucketsSection(Section):
    """``buckets:``, how much the loss depends on each bucket of a change (arXiv 2009.13003).

    Args:
        after: iterations after which a change begins.
        every, count: changes over ``every``, 2 ``every`` ... ``count`` times ``every`` iterations.
    """

    after: Annotated[list[Step], Field(min_length=1)]
    every: Count = 10
    count: Count = 6


Sections = tuple[ReworkSection | None, BucketsSection | None]


def problem_of(
    kind: str,
    steps: int,
    sections: Sections,
    *,
    failures: Any,
    metric: str,
    saving: Mapping[str, bool],
) -> str | None:
    """What is wrong with the two sections in an experiment; None: nothing.

    Args:
        kind: of the experiment.
        steps: of it.
        sections: its own of this module.
        failures: of it.
        metric: of its evaluation.
        saving: for each key that decides how checkpoints are stored whether it is as usual.

    Returns:
        One sentence, in the words of the YAML file.
    """
    rework, buckets = sections
    named = {"rework": rework, "buckets": buckets}
    given = [name for name, section in named.items() if section is not None]
    if kind != "rework":
        return f"{given[0]} belongs to kind: rework, not {kind}" if given else None
    if len(given) != 1:
        return "kind: rework needs one of the sections rework and buckets"
    if failures not in (0, {"at": []}):
        return f"kind: rework draws its failures itself, so failures must be 0, not {failures!r}"
    if metric != "loss":
        return f"rework is counted on the loss, so evaluate.metric must be loss, not {metric}"
    unusual = [key for key in saving if not saving[key] and key not in OWN]
    if unusual:
        return (
            f"kind: rework stores at a given size: {' and '.join(unusual)} would change nothing; leave it out"
        )
    if rework is not None:
        return _failing(rework, steps)
    return None if buckets is None else _changing(buckets, steps)


def _failing(section: ReworkSection, steps: int) -> str | None:
    if (section.size is None) == (section.point is None):
        return "rework: give size, or the method's point as a mapping"
    first, last = section.between or [1, steps]
    if not 1 <= first <= last <= steps:
        return (
            f"rework.between: [{first}, {last}] is not a range within the run; a failure comes after "
            f"iteration 1 at the earliest and after the last one ({steps}) at the latest"
        )
    return None


def _changing(section: BucketsSection, steps: int) -> str | None:
    last = max(section.after) + section.every * section.count
    if last <= steps:
        return None
    return f"buckets: a change that ends after iteration {last} is outside the run of {steps} steps"
