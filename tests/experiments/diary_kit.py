"""The diary of a short run that was killed once, and what results.json makes of it."""

from __future__ import annotations

from typing import Any

from dynaquant_core.experiments.baseline import Baseline
from dynaquant_core.experiments.config import validate
from dynaquant_core.experiments.results import run_entry

BASELINE = Baseline(
    final=2.0,
    parts={10: 3.0, 20: 2.5, 30: 2.2, 40: 2.0},
    curve=[(10, 3.0), (40, 2.0)],
    train=2.0,
    digest="aa",
)


def checkpoint(step: int, weight: int, moment: int, met: bool = True) -> dict[str, Any]:
    parts = {
        "weight": {"raw_bytes": 1000, "stored_bytes": weight},
        "moment": {"raw_bytes": 2000, "stored_bytes": moment},
        "exact": {"raw_bytes": 10, "stored_bytes": 40},
    }
    return {
        "event": "checkpoint",
        "step": step,
        "kind": "key" if step == 10 else "delta",
        "config": {"bins": 8, "prune": 0.1, "prune_metric": "magnitude"},
        "raw_bytes": 3010,
        "stored_bytes": weight + moment + 40,
        "parts": parts,
        "unchanged": None if step == 10 else 0.5,
        "movement_lost": {"stale": 0.1, "noise": 0.2, "er": None},
        "quality": {"reference": 3.0, "search": 3.01, "heldout": 3.02},
        "degradation": {"search": 0.003, "heldout": 0.004, "heldout_se": 0.001},
        "met": met,
        "evaluations": 3,
        "exhaustive": step == 10,
        "seconds": {
            "held": 0.1,
            "search": 0.3,
            "draft": 0.05,
            "encode": 0.2,
            "commit": 0.01,
            "collector": 0.0,
        },
    }


def diary(*probes: tuple[int, float], final: float = 2.1) -> list[dict[str, Any]]:
    return [
        {"event": "start", "restored": 0},
        {"event": "loss", "step": 10, "loss": 3.0, "seconds": 2.0},
        checkpoint(10, 100, 400),
        {"event": "loss", "step": 15, "loss": 2.8, "seconds": 3.0},
        {"event": "killed", "step": 15},
        {"event": "start", "restored": 10},
        *({"event": "probe", "step": step, "value": value} for step, value in probes),
        {"event": "loss", "step": 20, "loss": 2.5, "seconds": 2.0},
        checkpoint(20, 50, 400, met=False),
        *({"event": "loss", "step": step, "loss": 2.2, "seconds": 3.0} for step in range(31, 41)),
        {"event": "final", "step": 40, "value": final, "weights_digest": "bb", "parameters": 250},
    ]


def entry(tiny: dict[str, Any], events: list[dict[str, Any]], **changes: Any) -> dict[str, Any]:
    return run_entry(validate(tiny | changes, "tiny"), events, BASELINE)
