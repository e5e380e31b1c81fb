"""The same run, never interrupted: trained once, kept outside the results, found again by what decides it."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from dynaquant_core.errors import StorageError
from dynaquant_core.experiments import events
from dynaquant_core.experiments.config.experiment import Experiment
from dynaquant_core.experiments.events import Event
from dynaquant_core.experiments.job import Job
from dynaquant_core.experiments.supervisor import Report, complete
from dynaquant_core.experiments.trainer import device_name

__all__ = [
    "DECISIVE",
    "FOLDER",
    "KEPT",
    "RECORD",
    "Baseline",
    "baseline_key",
    "find_baseline",
    "last_interval_loss",
    "publish",
    "train_baseline",
]

#: Below the current folder, beside the default outputs.
FOLDER = Path("runs") / ".baselines"

#: What decides an uninterrupted run, beside its data's content, torch, the device and the number of threads.
DECISIVE = ("model", "data", "optimizer", "steps", "checkpoint_every", "seed", "evaluate")

#: Counts up when a baseline's diary tells more than before, so that an older one is trained again.
RECORD = 2

_MAKING: dict[str, threading.Lock] = {}

#: Events of a diary that say how training went, whoever saved meanwhile.
KEPT = ("loss", "reference", "final")


@dataclass(frozen=True, slots=True)
class Baseline:
    """An uninterrupted run.

    Args:
        final: held-out metric after the last step.
        parts: search metric on the small part, by checkpoint step.
        curve: (step, training loss).
        train: mean training loss over the last interval.
        digest: of the final weights.
    """

    final: float
    parts: dict[int, float]
    curve: list[tuple[int, float]]
    train: float | None = None
    digest: str | None = None

    @classmethod
    def of(cls, diary: Sequence[Event], interval: int) -> Baseline:
        """Reads a finished diary without restores; ``interval``: steps between its checkpoints."""
        final = events.find(diary, "final")[-1]
        return cls(
            final=final["value"],
            parts={event["step"]: event["part"] for event in events.find(diary, "reference")},
            curve=[(event["step"], event["loss"]) for event in events.find(diary, "loss")],
            train=last_interval_loss(diary, interval),
            digest=final["weights_digest"],
        )


def last_interval_loss(diary: Sequence[Event], interval: int) -> float | None:
    """Mean training loss over the last ``interval`` steps of a finished run, as they were taken last."""
    first = events.find(diary, "final")[-1]["step"] - interval
    losses = {event["step"]: event["loss"] for event in events.find(diary, "loss") if event["step"] > first}
    return sum(losses.values()) / len(losses) if losses else None


def baseline_key(experiment: Experiment, fingerprint: str, threads: int | None = None) -> str:
    """Hex name of the baseline that an experiment's run is compared with.

    Args:
        experiment: one run.
        fingerprint: of its data.
        threads: of its process; None: as many as there are.
    """
    settings = experiment.as_dict()
    decisive = {name: settings[name] for name in DECISIVE}
    machine = [torch.__version__, device_name(), threads or torch.get_num_threads()]
    text = json.dumps([RECORD, decisive, fingerprint, machine], sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def find_baseline(key: str, interval: int) -> Baseline | None:
    """The cached baseline, or None; ``interval``: steps between its checkpoints."""
    diary = events.read(FOLDER / key / "events.jsonl")
    return Baseline.of(diary, interval) if events.find(diary, "final") else None


def train_baseline(
    experiment: Experiment,
    key: str,
    label: str,
    report: Report,
    threads: int | None = None,
    *,
    start: Path | None = None,
) -> Baseline:
    """Trains without saving or failures, and caches the result; one that another thread trains is waited for.

    Args:
        experiment: one run.
        key: of its baseline.
        label: name of the run that needs it first, in progress reports and errors.
        report: takes progress.
        threads: of its process; None: as many as there are.
        start: weights that it begins with, of which ``key`` tells; None: the model's own.

    Raises:
        ExperimentError: the training process failed.
    """
    with _in_turn(key):
        return _trained(experiment, key, label, report, threads, start)


def _trained(
    experiment: Experiment, key: str, label: str, report: Report, threads: int | None, start: Path | None
) -> Baseline:
    found = find_baseline(key, experiment.checkpoint_every)
    if found is not None:
        return found
    _sweep(key)
    partial = FOLDER / f"{key}.{os.getpid()}"
    shutil.rmtree(partial, ignore_errors=True)  # of a failure, whose log was worth keeping until now
    job = Job(partial, experiment, saves=False, threads=threads, start=start)
    job.write()
    diary = complete(job, (), f"baseline of {label}", report)
    _move(partial, key, experiment.checkpoint_every)
    return Baseline.of(diary, experiment.checkpoint_every)


def publish(diary: Sequence[Event], key: str, interval: int) -> Baseline:
    """Caches a run that was never interrupted as the baseline it is: saving changes nothing."""
    baseline = Baseline.of(diary, interval)
    with _in_turn(key):
        if find_baseline(key, interval) is None:
            partial = FOLDER / f"{key}.{os.getpid()}"
            partial.mkdir(parents=True, exist_ok=True)
            for event in diary:
                if event["event"] in KEPT:
                    events.append(partial / "events.jsonl", **event)
            _move(partial, key, interval)
    return baseline


def _in_turn(key: str) -> threading.Lock:
    """Held by the one thread of this process that makes a baseline."""
    return _MAKING.setdefault(key, threading.Lock())


def _sweep(key: str) -> None:
    """Removes what an experiment that was killed itself left of this baseline."""
    for folder in FOLDER.glob(f"{key}.*"):
        if not _lives(folder.suffix[1:]):
            shutil.rmtree(folder, ignore_errors=True)


def _lives(number: str) -> bool:
    """Whether a process of this number exists; what is no number is not ours to judge."""
    try:
        os.kill(int(number), 0)
    except ProcessLookupError:
        return False
    except (ValueError, PermissionError):
        return True
    return True


def _move(partial: Path, key: str, interval: int) -> None:
    """One rename publishes a baseline; where another experiment was faster its equal one stays."""
    folder = FOLDER / key
    try:
        if find_baseline(key, interval) is None:
            shutil.rmtree(folder, ignore_errors=True)  # what lies there is no whole one
            partial.replace(folder)
    except OSError as error:
        if find_baseline(key, interval) is None:  # else the other came between the two
            raise StorageError(f"{folder}: the baseline cannot be kept: {error.strerror}.") from None
    finally:
        shutil.rmtree(partial, ignore_errors=True)
