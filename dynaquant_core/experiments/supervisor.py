"""Starts training processes, kills them at the planned steps, and starts them again until the run is done."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from dynaquant_core.errors import ExperimentError, StorageError
from dynaquant_core.experiments import events
from dynaquant_core.experiments.children import Child, Children
from dynaquant_core.experiments.events import Event
from dynaquant_core.experiments.job import Job
from dynaquant_core.experiments.machine import threads_here
from dynaquant_core.threads import thread_count

__all__ = ["Progress", "Report", "Watcher", "complete"]


#: What is said of events that hold nothing to say.
SAID = {
    "killed": "killed (SIGKILL)",
    "swapped": "state thrown away",
    "waiting": "waiting for another process that makes the same recording",
}


@dataclass(frozen=True, slots=True)
class Progress:
    """Where a run is.

    Args:
        run: label of the run.
        step, steps: optimizer steps done, of how many.
        loss: latest training loss, if any.
        message: what just happened, empty while it only trains.
    """

    run: str
    step: int
    steps: int
    loss: float | None = None
    message: str = ""


Report = Callable[[Progress], None]


@dataclass(frozen=True, slots=True)
class Watcher:
    """A `Report` that knows the processes as well, so that an interrupt can end them all.

    Args:
        report: takes progress.
        children: takes processes.
    """

    report: Report
    children: Children

    def __call__(self, progress: Progress) -> None:
        """Passes on where a run is."""
        self.report(progress)


def complete(job: Job, failures: Sequence[int], label: str, report: Report) -> list[Event]:
    """Brings a run to its end, killing its process at every failure step; returns its diary.

    A run whose diary holds its final event is left as it is; one that was interrupted goes on, and fails at
    what is left of the steps from its newest checkpoint on.

    Args:
        job: the run, its folder written.
        failures: steps, ascending, at which it is killed; none where it swaps its state itself.
        label: name of the run in progress reports.
        report: takes progress; a `Watcher` the processes too.

    Raises:
        ExperimentError: the process ended without finishing; names its log.
        StorageError: its log or diary cannot be written.
    """
    if not isinstance(report, Watcher):
        with Children() as children:
            return complete(job, failures, label, Watcher(report, children))
    warned: set[str] = set()
    while True:
        diary = events.read(job.diary)
        if events.find(diary, "final"):
            return diary
        killed = {event["step"] for event in events.find(diary, "killed")}
        saved = max((event["step"] for event in events.find(diary, "checkpoint")), default=0)
        left = [step for step in failures if step not in killed and step >= saved]
        _one_life(job, left[0] if left else None, label, report, warned)


def _one_life(job: Job, halt: int | None, label: str, watcher: Watcher, warned: set[str]) -> None:
    """One process, to its end or its halt; ``warned``: what was shown already, of this run."""
    arguments = [str(job.folder)] if halt is None else [str(job.folder), "--halt", str(halt)]
    try:
        log = job.log.open("ab")
    except OSError as error:
        raise StorageError(f"{label}: {job.log} cannot be written: {error.strerror}.") from error
    with log:
        said = log.tell()
        child = watcher.children.start(arguments, log, _environment(job))
    try:
        with child.output:
            killed, problem = _listen(child, job, label, watcher, warned)
    finally:
        child.kill()  # after an error or an interrupt here: no orphan goes on writing
        code = child.wait()
    if not killed and code != 0:
        raise ExperimentError(f"{label}: {problem or _crashed(job, said, code)}")


def _environment(job: Job) -> dict[str, str]:
    """Of the process: the parent's modules, and its share of the threads where several work at a time."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(entry for entry in sys.path if entry)}
    if job.threads is not None:
        environment |= dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS"), str(job.threads))
        if job.threads < threads_here():  # ours decide about no bit: all of them, where it works alone
            environment["DYNAQUANT_THREADS"] = str(min(job.threads, thread_count()))
    return environment


def _listen(child: Child, job: Job, label: str, report: Report, warned: set[str]) -> tuple[bool, str]:
    """Forwards what the process says until it ends; kills it at its halt.  Returns (killed, error)."""
    killed, problem, step = False, "", 0
    for line in child.output:
        message = {"step": step} | _parsed(line)
        step = int(message["step"])
        if message["event"] == "error":
            problem = str(message["message"])
        elif message["event"] == "halt":
            child.kill()
            child.wait()
            killed = True
            events.append(job.diary, "killed", step=message["step"])
            report(_progress(label, job, message | {"event": "killed"}))
        elif message.get("message") not in warned:
            report(_progress(label, job, message))
        if message["event"] == "warning":
            warned.add(message["message"])
    return killed, problem


def _parsed(line: str) -> dict[str, Any]:
    try:
        message = json.loads(line)
    except ValueError:
        message = None
    return message if isinstance(message, dict) and "event" in message else {"event": "noise"}


def _progress(label: str, job: Job, message: dict[str, Any]) -> Progress:
    step = max(int(message["step"]), int(message.get("restored", 0)))
    return Progress(label, step, job.experiment.steps, message.get("loss"), _words(message))


def _words(message: dict[str, Any]) -> str:
    match message["event"]:
        case "warning":
            return f"warning: {message['message']}"
        case "start" if message["restored"]:
            return f"resumed from step {message['restored']}"
        case "checkpoint":
            ratio = message["raw_bytes"] / max(1, message["stored_bytes"])
            return f"{message['kind']} checkpoint, {ratio:.1f}x smaller"
        case "recording" if message["states"]:
            return f"recording {message['states']} exact states, about {message['bytes'] / 1e6:,.0f} MB"
        case "recorded":
            return f"exact state, {message['bytes'] / 1e6:.1f} MB"
        case "final" if message["value"] is None:
            return "finished"
        case "final":
            return f"finished, held-out metric {message['value']:.4f}"
    return SAID.get(message["event"], "")


def _crashed(job: Job, said: int, code: int | None) -> str:
    """What became of a process that said nothing; ``said``: bytes of its log that are older than it."""
    if code is None:
        return (
            f"the training process was ended, as somebody killed the one that forked it (the system, where "
            f"memory is short); a later run goes on from what was written; its log is {job.log}."
        )
    text = job.log.read_bytes()[said:].decode(errors="replace") if job.log.exists() else ""
    last = next((line for line in reversed(text.split("\n")) if line.strip()), "it said nothing")
    return f"the training process ended with code {code} ({last.strip()}); its log is {job.log}."
