"""Runs an experiment from its YAML file to results.json, plots and a page."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dynaquant_core.errors import DependencyError
from dynaquant_core.experiments.baseline import baseline_key, find_baseline, publish, train_baseline
from dynaquant_core.experiments.config.experiment import Experiment
from dynaquant_core.experiments.config.grid import expand
from dynaquant_core.experiments.config.source import load_experiment
from dynaquant_core.experiments.data.registry import fingerprint
from dynaquant_core.experiments.environment import environment
from dynaquant_core.experiments.events import Event
from dynaquant_core.experiments.failures import failure_steps
from dynaquant_core.experiments.job import Job, write_json
from dynaquant_core.experiments.output import claim
from dynaquant_core.experiments.report import write_report
from dynaquant_core.experiments.restores import restores_of
from dynaquant_core.experiments.results import FORMAT, Results, run_entry
from dynaquant_core.experiments.supervisor import Progress, Report, complete
from dynaquant_core.methods.moments import moments_method
from dynaquant_core.methods.registry import resolve_method

__all__ = ["run_experiment"]

logger = logging.getLogger(__name__)


def run_experiment(
    config: str | Path, overrides: Sequence[str] = (), progress: Report | None = None
) -> Results:
    """Trains, saves, kills, resumes and measures what a config describes; finished parts are not repeated.

    results.json is written after each run, with those finished so far.  Training happens in processes of
    their own; failures are SIGKILLs of them, or swaps of their state.  Plots need matplotlib; without it
    everything else is written and the log says what to install.

    Args:
        config: a YAML file, or the name of a shipped config.
        overrides: ``key.sub=value``.
        progress: called with where each run is, a few times a second.

    Raises:
        ConfigError: the config is not valid.
        ExperimentError: data is missing, the output folder is another experiment's, or training failed.

    Returns:
        The results, as written to results.json.
    """
    experiment = load_experiment(config, overrides)
    runs = expand(experiment)
    report = progress or _ignore
    prints = _preflight(runs)
    folder = claim(experiment)
    entries: dict[int, dict[str, Any]] = {}
    facts = {"format": FORMAT, "config": experiment.as_dict(), "environment": environment()}
    path = folder / "results.json"
    for index in sorted(range(len(runs)), key=lambda index: bool(runs[index].failures)):
        label = f"run {index + 1} of {len(runs)}, seed {runs[index].seed}"
        entries[index] = _one_run(runs[index], folder / f"run-{index}", prints[index], label, report)
        facts |= {"runs": [entries[done] for done in sorted(entries)]}
        write_json(path, facts)  # after each run: a grid may take days
    results = Results(path, facts)
    try:
        write_report(results)
    except DependencyError as error:
        logger.warning("%s", error)
    return results


def _preflight(runs: Sequence[Experiment]) -> list[str]:
    """Everything that can be refused before hours of training; returns each run's data fingerprint."""
    known: dict[str, str] = {}
    for run in runs:
        resolve_method(run.method)
        moments_method(run.moments)
        key = run.data.model_dump_json()
        if key not in known:
            known[key] = fingerprint(run.data)
    return [known[run.data.model_dump_json()] for run in runs]


def _one_run(run: Experiment, folder: Path, data: str, label: str, report: Report) -> dict[str, Any]:
    """The entry of one run; failure-free runs come first, so that they serve as baselines of the others."""
    key, interval = baseline_key(run, data), run.checkpoint_every
    failures = failure_steps(run.failures, run.steps, interval)
    if failures and find_baseline(key, interval) is None:
        train_baseline(run, key, report)
    job = Job(folder, run, saves=True)
    if not (folder / "job.json").exists():
        job.write()
    kills = failures if run.restores == "kill" else ()
    diary: list[Event] = complete(job, kills, label, report)
    interrupted = any(restore["restored_step"] for restore in restores_of(diary))
    baseline = train_baseline(run, key, report) if interrupted else publish(diary, key, interval)
    return run_entry(run, diary, baseline)


def _ignore(progress: Progress) -> None:
    """Nobody watches."""
