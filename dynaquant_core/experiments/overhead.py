"""What saving costs a training, and what it would cost a large one at a usual interval."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from dynaquant_core.experiments.recording import WINDOW

__all__ = ["ALLOWED", "LARGE", "LARGE_INTERVAL", "STAGES_OF_OVERHEAD", "Overhead", "overhead_of"]

#: Share of the training time that saving may take (arXiv 2306.11800 allows as much).
ALLOWED: Final = 0.005

#: A run of the size the publication measures: parameters, and seconds between two checkpoints.
LARGE: Final = 335_000_000
LARGE_INTERVAL: Final = 1800.0

#: The stages that hold up a training; encoding and committing happen beside it.
STAGES_OF_OVERHEAD: Final = ("collector", "held", "search")


@dataclass(frozen=True, slots=True)
class Overhead:
    """Shares of the training time.

    Args:
        here: stage -> share of this run's training time.
        large: stage -> share of a training of `LARGE` parameters that saves every `LARGE_INTERVAL` seconds,
            if a parameter costs as many seconds there as here; the search as many evaluations.  Gradients
            are averaged over a whole window before a save there, also where an interval here is shorter.
    """

    here: dict[str, float]
    large: dict[str, float]

    @property
    def share(self) -> float:
        """Of this run's training time, all stages together."""
        return sum(self.here.values())

    @property
    def exceeding(self) -> list[str]:
        """Stages that alone exceed `ALLOWED` in the large training, the worst first."""
        over = [stage for stage, share in self.large.items() if share > ALLOWED]
        return sorted(over, key=lambda stage: -self.large[stage])


def overhead_of(run: Mapping[str, Any]) -> Overhead:
    """Collector, time held, and search of a run, as shares; ``held`` includes drawing up the draft.

    Args:
        run: an element of ``runs`` of results.json.

    Example:
        >>> run = {"parameters": 1_000_000, "interval_steps": 60,
        ...     "overhead": {"held": 0.002, "search": 0.007, "encode": 0.5},
        ...     "checkpoints": [{"seconds": {"held": 0.2, "search": 0.7, "encode": 50.0}}]}
        >>> round(overhead_of(run).share, 4), round(overhead_of(run).large["held"], 4)
        (0.009, 0.0372)
    """
    entries = run["checkpoints"]
    spent = {
        stage: sum(entry["seconds"].get(stage, 0.0) for entry in entries) for stage in STAGES_OF_OVERHEAD
    }
    each = {stage: total / max(1, len(entries)) / run["parameters"] for stage, total in spent.items()}
    each["collector"] *= WINDOW / min(WINDOW, run["interval_steps"])
    return Overhead(
        here={stage: run["overhead"].get(stage, 0.0) for stage in STAGES_OF_OVERHEAD},
        large={stage: value * LARGE / LARGE_INTERVAL for stage, value in each.items()},
    )
