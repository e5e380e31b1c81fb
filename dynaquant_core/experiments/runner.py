"""Runs an experiment from its YAML file to results.json, plots and a page."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dynaquant_core.config import require
from dynaquant_core.errors import DependencyError, DynaQuantError
from dynaquant_core.experiments.children import Children
from dynaquant_core.experiments.config.experiment import Experiment
from dynaquant_core.experiments.config.grid import expand
from dynaquant_core.experiments.config.language import HFModel
from dynaquant_core.experiments.config.source import load_experiment
from dynaquant_core.experiments.crew import run_tasks
from dynaquant_core.experiments.environment import environment
from dynaquant_core.experiments.job import write_json
from dynaquant_core.experiments.kinds.base import Planned
from dynaquant_core.experiments.kinds.registry import kind_of
from dynaquant_core.experiments.machine import threads_here
from dynaquant_core.experiments.narrow import method_of
from dynaquant_core.experiments.optimizers import learning_rate
from dynaquant_core.experiments.output import claimed, run_folders
from dynaquant_core.experiments.pretraining import content
from dynaquant_core.experiments.report import write_report, write_table
from dynaquant_core.experiments.results import FORMAT, Results
from dynaquant_core.experiments.supervisor import Progress, Report, Watcher
from dynaquant_core.experiments.tasks import folder_job, grid_tasks
from dynaquant_core.experiments.varied import varied
from dynaquant_core.methods.moments import moments_method

__all__ = ["run_experiment"]

logger = logging.getLogger(__name__)


def run_experiment(
    config: str | Path, overrides: Sequence[str] = (), progress: Report | None = None, *, jobs: int = 1
) -> Results:
    """Trains, saves, kills, resumes and measures what a config describes; finished parts are not repeated.

    results.json and results.csv are written after each run, with those finished so far.  Training happens in
    processes of their own; failures are SIGKILLs of them, or swaps of their state.  Plots need matplotlib;
    without it everything else is written and the log says what to install.

    Args:
        config: a YAML file, or the name of a shipped config.
        overrides: ``key.sub=value``.
        progress: called with where each run is, a few times a second; by one thread at a time.
        jobs: processes at a time, each with its share of the threads.

    Raises:
        ConfigError: the config is not valid.
        ExperimentError: data is missing, the output folder is another experiment's, or training failed.
        StoreLockedError: another process works in the output folder.

    Returns:
        The results, as written to results.json.
    """
    require(jobs >= 1, f"jobs: expected a number of processes of at least 1, got {jobs}.")
    experiment = load_experiment(config, overrides)
    runs = expand(experiment)
    prints = _preflight(runs)
    with claimed(experiment) as folder:
        return _run(experiment, runs, prints, folder, progress or _ignore, jobs)


def _run(
    experiment: Experiment,
    runs: Sequence[Experiment],
    prints: Sequence[str],
    folder: Path,
    progress: Report,
    jobs: int,
) -> Results:
    """All runs, in a folder of their own."""
    threads = max(1, threads_here() // jobs)
    plan = {}
    for index, (run, place, data) in enumerate(zip(runs, run_folders(folder, runs), prints, strict=True)):
        job = folder_job(place, run, data, threads)
        plan[str(index)] = Planned(run, job, job.content or data, _label(index, runs))
    facts = {"format": FORMAT, "config": experiment.as_dict(), "environment": environment() | {"jobs": jobs}}
    results = Results(folder / "results.json", facts)
    apart = varied(runs)
    known = {run["folder"]: run for run in _before(results.path)}
    entries: dict[int, dict[str, Any]] = {
        int(name): known[planned.job.folder.name] | {"varied": apart[int(name)]}
        for name, planned in plan.items()
        if planned.job.folder.name in known and planned.job.finished
    }  # so that those are never missing, whatever becomes of new runs

    def keep(name: str, result: Any) -> None:
        if name in plan:  # after each run: a grid may take days
            entries[int(name)] = result | {"varied": apart[int(name)]}
            facts["runs"] = [entries[done] for done in sorted(entries)]
            write_json(results.path, facts)
            write_table(results)

    try:
        with Children() as children:
            run_tasks(grid_tasks(plan, Watcher(_in_turn(progress), children)), jobs, keep, children)
    except DynaQuantError:
        if "runs" in facts:  # a page of what was finished
            try:
                _report(results)
            except DynaQuantError as error:  # what failed first may well be why
                logger.warning("%s", error)
        raise
    _report(results)
    return results


def _report(results: Results) -> None:
    """Plots and page, as far as there is something to draw with."""
    try:
        write_report(results)
    except DependencyError as error:
        logger.warning("%s", error)


def _preflight(runs: Sequence[Experiment]) -> list[str]:
    """Everything that can be refused before hours of training; returns a digest of what each run reads."""
    known: dict[tuple[str, str], str] = {}
    for remark in dict.fromkeys(remark for run in runs for remark in _never_warm(run)):
        logger.warning("%s", remark)
    for run in runs:
        method_of(run)
        moments_method(run.moments)
        key = _read_by(run)
        if key not in known:
            known[key] = content(run)
        kind_of(run).preflight(run, known[key])
    return [known[_read_by(run)] for run in runs]


def _never_warm(run: Experiment) -> list[str]:
    """Trainings that end before their learning rate is what ``lr`` says."""
    trainings = {"": (run.optimizer, run.steps)}
    section = run.pretrained
    if section is not None and section.steps is not None:
        trainings["pretrained."] = (section.optimizer or run.optimizer, section.steps)
    return [
        f"{where}optimizer.warmup: {optimizer.warmup} steps are more than the run's {steps}, so the learning "
        f"rate ends at {learning_rate(optimizer, steps - 1, steps):g} and never reaches lr: {optimizer.lr:g}."
        for where, (optimizer, steps) in trainings.items()
        if optimizer.warmup > steps
    ]


def _read_by(run: Experiment) -> tuple[str, str]:
    """What decides the content that a run reads; of a transfer the model too, which its pre-training had."""
    model = run.model.model_dump_json()
    if run.pretrained is not None:
        return run.data.model_dump_json(), f"{model} {run.pretrained.model_dump_json()}"
    return run.data.model_dump_json(), model if isinstance(run.model, HFModel) else ""


def _before(path: Path) -> list[dict[str, Any]]:
    """Entries of the results.json of an earlier start; none where it cannot be read."""
    try:
        runs = json.loads(path.read_text(encoding="utf-8"))["runs"]
        return [run for run in runs if "folder" in run]
    except (OSError, ValueError, KeyError, TypeError):
        return []


def _label(index: int, runs: Sequence[Experiment]) -> str:
    return f"run {index + 1} of {len(runs)}, seed {runs[index].seed}"


def _in_turn(report: Report) -> Report:
    """The same, called by one thread at a time."""
    lock = threading.Lock()

    def told(progress: Progress) -> None:
        with lock:
            report(progress)

    return told


def _ignore(progress: Progress) -> None:
    """Nobody watches."""
