"""What a system's run comes to in results.json."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dynaquant_core.experiments.baseline import Baseline, last_interval_loss
from dynaquant_core.experiments.config.experiment import Experiment
from dynaquant_core.experiments.events import Event, find
from dynaquant_core.experiments.results import STAGES, training_seconds, worse_by

__all__ = ["system_entry"]


def system_entry(experiment: Experiment, diary: Sequence[Event], baseline: Baseline) -> dict[str, Any]:
    """One element of ``runs``: the keys of a trained run, null where they mean nothing here, and ``system``.

    ``method`` is the system's name, ``options`` its settings that are not as usual.

    Args:
        experiment: the run's settings.
        diary: its events, finished.
        baseline: the same training without the system.
    """
    section, last = experiment.system, find(diary, "final")[-1]
    assert section is not None, "the experiment's own check asks for it"
    curve = [[event["step"], event["loss"]] for event in find(diary, "loss")]
    # The curve of a long run may miss the last steps before it diverged; earlier versions tell no other time.
    seconds = last.get("seconds", training_seconds(diary))
    return {
        "kind": experiment.kind,
        "method": section.name,
        "options": section.model_dump(mode="json", exclude={"name"}, exclude_defaults=True),
        "seed": experiment.seed,
        "threshold": None,
        "interval_steps": experiment.checkpoint_every,
        "steps": experiment.steps,
        "model": experiment.model.name,
        "data": experiment.data.source,
        "moments": None,
        "max_chain": None,
        "parameters": last["parameters"],
        "training_seconds": seconds,
        "final": _final(experiment, diary, baseline),
        "system": {
            **last["facts"],
            "diverged_after": last["step"] if last["value"] is None else None,
            "seconds_a_step": seconds / max(1, last["step"]),
            "measured": [
                {key: event[key] for key in ("step", "search", "heldout")}
                for event in find(diary, "reference")
            ],
        },
        "overhead": dict.fromkeys(STAGES),
        "checkpoints": [],
        "totals": dict.fromkeys(("raw_bytes", "stored_bytes", "ratio", "weights_ratio")),
        "failures": [],
        "restores": [],
        "stale_times_interval": None,
        "curves": [curve],
        "baseline_curve": [list(point) for point in baseline.curve],
    }


def _final(experiment: Experiment, diary: Sequence[Event], baseline: Baseline) -> dict[str, Any]:
    last, mode = find(diary, "final")[-1], experiment.evaluate.mode
    train = None if last["value"] is None else last_interval_loss(diary, experiment.checkpoint_every)
    return {
        "metric": experiment.evaluate.metric,
        "mode": mode,
        "value": last["value"],
        "baseline": baseline.final,
        "relative_degradation": worse_by(last["value"], baseline.final, mode),
        "train_loss": train,
        "train_baseline": baseline.train,
        "train_relative_degradation": worse_by(train, baseline.train, "min"),
        "weights_digest": last["weights_digest"],
        "same_bits": last["weights_digest"] == baseline.digest,
    }
