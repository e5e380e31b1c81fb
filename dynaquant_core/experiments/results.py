"""results.json: what a run's diary says, in the fixed keys (docs/experiments.md)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from dynaquant_core.experiments.baseline import Baseline, last_interval_loss
from dynaquant_core.experiments.config.experiment import Experiment
from dynaquant_core.experiments.config.spelling import resolved
from dynaquant_core.experiments.events import Event, checkpoints, find
from dynaquant_core.experiments.pretraining import pretraining
from dynaquant_core.experiments.recording import as_one_life
from dynaquant_core.experiments.restores import lives_of, lost_training, restore_entries

__all__ = ["FORMAT", "STAGES", "Results", "replay_entry", "run_entry", "transfer_entry"]

FORMAT = 1

#: The stages of a save whose share of training time is reported (CheckpointInfo.seconds).
STAGES = ("collector", "held", "search", "draft", "encode", "commit")


@dataclass(frozen=True, slots=True)
class Results:
    """What an experiment wrote.

    Args:
        path: the file results.json.
        data: its content.
    """

    path: Path
    data: dict[str, Any]


def run_entry(experiment: Experiment, diary: Sequence[Event], baseline: Baseline) -> dict[str, Any]:
    """One element of ``runs``, of a run that was trained.

    Args:
        experiment: the run's settings.
        diary: its events, finished.
        baseline: the uninterrupted run.
    """
    restores = restore_entries(experiment, diary, baseline)
    return {
        **_saved(experiment, diary, training_seconds(diary)),
        "failures": [event["step"] for event in diary if event["event"] in {"killed", "swapped"}],
        "restores": restores,
        "stale_times_interval": lost_training(restores),
        "final": _final(experiment, diary, baseline),
        "curves": [
            [[event["step"], event["loss"]] for event in find(life, "loss")] for life in lives_of(diary)
        ],
        "baseline_curve": [list(point) for point in baseline.curve],
    }


def replay_entry(experiment: Experiment, diary: Sequence[Event], recorded: Sequence[Event]) -> dict[str, Any]:
    """One element of ``runs``, of a replay: the same keys; what only training can tell is empty or None.

    Args:
        experiment: the run's settings.
        diary: events of the replay, finished.
        recorded: events of the training that was recorded.
    """
    baseline = Baseline.of(as_one_life(recorded), experiment.checkpoint_every)
    return {
        **_saved(experiment, diary, training_seconds(recorded)),
        "as_restored": experiment.as_restored,
        "failures": [],
        "restores": [],
        "stale_times_interval": None,
        "final": {
            "metric": experiment.evaluate.metric,
            "mode": experiment.evaluate.mode,
            "value": None,
            "baseline": baseline.final,
            "relative_degradation": None,
            "train_loss": None,
            "train_baseline": baseline.train,
            "train_relative_degradation": None,
            "weights_digest": None,
            "same_bits": None,
        },
        "curves": [],
        "baseline_curve": [list(point) for point in baseline.curve],
    }


def transfer_entry(experiment: Experiment, diary: Sequence[Event], baseline: Baseline) -> dict[str, Any]:
    """One element of ``runs``, of a transfer: the same keys; its one checkpoint is that of step 0.

    Args:
        experiment: the run's settings.
        diary: its events, finished; of a fine-tuning that was cut short only the last attempt counts.
        baseline: the fine-tuning from the uncompressed weights.
    """
    tuned, judged = lives_of(diary)[-1], pretraining(experiment)
    return {
        **_saved(experiment, diary, training_seconds(tuned)),
        "failures": [],
        "restores": [],
        "stale_times_interval": None,
        "final": _final(experiment, tuned, baseline),
        "curves": [[[event["step"], event["loss"]] for event in find(tuned, "loss")]],
        "baseline_curve": [list(point) for point in baseline.curve],
        "pretrained": {
            "source": None if experiment.pretrained is None else experiment.pretrained.source,
            "data": judged.data.source,
            "metric": judged.evaluate.metric,
            "mode": judged.evaluate.mode,
        },
    }


def _saved(experiment: Experiment, diary: Sequence[Event], seconds: float) -> dict[str, Any]:
    """What was run, and what its checkpoints were; ``seconds``: of training."""
    method, options = resolved(experiment.method)
    entries = [{key: event[key] for key in event if key != "event"} for event in checkpoints(diary)]
    return {
        "kind": experiment.kind,
        "method": method,
        "options": options,
        "fix": experiment.fix,
        "search": experiment.search,
        "seed": experiment.seed,
        "threshold": experiment.threshold,
        "interval_steps": experiment.checkpoint_every,
        "overhead": _overhead(find(diary, "checkpoint"), seconds),
        "checkpoints": entries,
        "steps": experiment.steps,
        "model": experiment.model.name,
        "data": experiment.data.source,
        "moments": experiment.moments,
        "max_chain": experiment.max_chain,
        "parameters": find(diary, "final")[-1]["parameters"],
        "totals": _totals(entries),
        "training_seconds": seconds,
    }


def training_seconds(diary: Sequence[Event]) -> float:
    """Time all processes of a run spent in training steps, replayed ones included; a collector's is in it."""
    return sum(
        max((event["seconds"] for event in find(life, "loss")), default=0.0) for life in lives_of(diary)
    )


def _overhead(saves: Sequence[Event], seconds: float) -> dict[str, float]:
    """Shares of training, of which steps that were taken twice are a part: so saves of both times count."""
    spent = {stage: sum(save["seconds"].get(stage, 0.0) for save in saves) for stage in STAGES}
    training = seconds - spent["collector"]  # which works inside of the optimizer's step
    return {stage: total / training if training > 0 else 0.0 for stage, total in spent.items()}


def _totals(entries: Sequence[dict[str, Any]]) -> dict[str, Any]:
    raw = sum(entry["raw_bytes"] for entry in entries)
    stored = sum(entry["stored_bytes"] for entry in entries)
    weights = [entry["parts"]["weight"] for entry in entries if "weight" in entry["parts"]]
    weights_raw = sum(part["raw_bytes"] for part in weights)
    weights_stored = sum(part["stored_bytes"] for part in weights)
    return {
        "raw_bytes": raw,
        "stored_bytes": stored,
        "ratio": raw / stored if stored else None,
        "weights_ratio": weights_raw / weights_stored if weights_stored else None,
    }


def _final(experiment: Experiment, diary: Sequence[Event], baseline: Baseline) -> dict[str, Any]:
    last, mode = find(diary, "final")[-1], experiment.evaluate.mode
    train = last_interval_loss(diary, experiment.checkpoint_every)
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
        "same_bits": None if baseline.digest is None else last["weights_digest"] == baseline.digest,
    }


def worse_by(value: float | None, baseline: float | None, mode: Literal["min", "max"]) -> float | None:
    """Relative degradation, positive = worse; None where it has no value.

    Example:
        >>> worse_by(2.5, 2.0, "min"), worse_by(0.5, 0.5, "max"), worse_by(1.0, 0.0, "min")
        (0.25, 0.0, None)
    """
    if value is None or baseline is None:
        return None
    worse = value - baseline if mode == "min" else baseline - value
    return worse / abs(baseline) if baseline else (0.0 if worse == 0 else None)
