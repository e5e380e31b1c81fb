"""The same run, never interrupted: trained once, kept outside the results, found again by what decides it."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import shutil
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from dynaquant_core.errors import StorageError
from dynaquant_core.experiments import events
from dynaquant_core.experiments.config.experiment import Experiment
from dynaquant_core.experiments.config.systems import TwoBitSystem
from dynaquant_core.experiments.events import Event
from dynaquant_core.experiments.job import Job
from dynaquant_core.experiments.locks import own_folder, sweep
from dynaquant_core.experiments.machine import Machine, lives_on, machine_here
from dynaquant_core.experiments.supervisor import Report, complete

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
    "require_place",
    "train_baseline",
]

logger = logging.getLogger(__name__)

#: Below the current folder, beside the default outputs.
FOLDER = Path("runs") / ".baselines"

#: What decides an uninterrupted run, beside its data's content and the machine (`machine`).
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


def baseline_key(experiment: Experiment, fingerprint: str, machine: Machine) -> str:
    """Hex name of the baseline that an experiment's run is compared with.

    Args:
        experiment: one run.
        fingerprint: of its data.
        machine: that it is trained on.
    """
    settings = experiment.as_dict()
    decisive = {name: settings[name] for name in DECISIVE}
    if isinstance(experiment.system, TwoBitSystem):  # each replica draws batches of its own
        decisive["replicas"] = experiment.system.replicas
    text = json.dumps([RECORD, decisive, fingerprint, dict(machine)], sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def find_baseline(key: str, interval: int) -> Baseline | None:
    """The cached baseline, or None, as where it is damaged; ``interval``: steps between its checkpoints."""
    diary = events.read_whole(FOLDER / key / "events.jsonl")
    return Baseline.of(diary, interval) if events.find(diary, "final") else None


def train_baseline(
    experiment: Experiment,
    fingerprint: str,
    machine: Machine,
    label: str,
    report: Report,
    *,
    start: Path | None = None,
) -> Baseline:
    """Trains without saving or failures, and caches the result; one that another thread trains is waited for.

    Where the run that needs it was begun on another machine whose baseline is not here, it is compared with
    one of this machine, and a warning says so.

    Args:
        experiment: one run.
        fingerprint: of its data.
        machine: that the run is or was trained on.
        label: name of the run that needs it first, in progress reports and errors.
        report: takes progress.
        start: weights that it begins with, of which ``fingerprint`` tells; None: the model's own.

    Raises:
        ExperimentError: the training process failed.
    """
    key, interval = baseline_key(experiment, fingerprint, machine), experiment.checkpoint_every
    with _in_turn(key):
        found = find_baseline(key, interval)
        if found is not None:
            return found
        here = machine_here(machine["threads"], experiment.model)
        other = find_baseline(baseline_key(experiment, fingerprint, here), interval)
        if other is not None:
            _tell_apart(label, machine, here)
            return other
        sweep(FOLDER / key)
        with own_folder(FOLDER / key) as partial:
            job = Job(partial, experiment, saves=False, threads=machine["threads"], start=start)
            return _trained(job, fingerprint, machine, label, report)


def _trained(job: Job, fingerprint: str, machine: Machine, label: str, report: Report) -> Baseline:
    """Kept under the machine that its process was on, whatever this one takes for it."""
    job.write()
    diary = complete(job, (), f"baseline of {label}", report)
    (made,) = lives_on(diary)
    if made != machine:
        _tell_apart(label, machine, made)
    interval = job.experiment.checkpoint_every
    _move(job.folder, baseline_key(job.experiment, fingerprint, made), interval)
    return Baseline.of(diary, interval)


def _tell_apart(label: str, wanted: Machine, found: Machine) -> None:
    differing = [
        f"{name} {wanted.get(name, 'of some version')}, not {found[name]}"
        for name in found
        if found[name] != wanted.get(name)
    ]
    logger.warning(
        "%s was trained on another machine than the uninterrupted run that it is compared with (%s): "
        "rounding alone makes them differ; keep runs/.baselines of that machine, or run it anew.",
        label,
        "; ".join(differing),
    )


def require_place() -> None:
    """Looks whether baselines can be kept here, before anything is trained; nothing is made.

    Raises:
        StorageError: not here; says where, and what to do.
    """
    there = next(place for place in (FOLDER, *FOLDER.parents) if place.exists())
    if not there.is_dir() or not os.access(there, os.W_OK | os.X_OK):
        raise StorageError(
            f"{str(there.resolve())!r} is no folder that may be written to, and uninterrupted runs and "
            f"recordings are kept in {str(FOLDER.parent)!r} below the current folder, whatever the output "
            "is; run it from another folder."
        )


def publish(diary: Sequence[Event], key: str, interval: int) -> Baseline:
    """Caches a run that was never interrupted as the baseline it is: saving changes nothing.

    Raises:
        StorageError: the system refuses.
    """
    baseline = Baseline.of(diary, interval)
    with _in_turn(key):
        if find_baseline(key, interval) is None:
            with own_folder(FOLDER / key) as partial:
                try:
                    for event in diary:
                        if event["event"] in KEPT:
                            events.append(partial / "events.jsonl", **event)
                    _move(partial, key, interval)
                finally:
                    shutil.rmtree(partial, ignore_errors=True)
    return baseline


def _in_turn(key: str) -> threading.Lock:
    """Held by the one thread of this process that makes a baseline."""
    return _MAKING.setdefault(key, threading.Lock())


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
