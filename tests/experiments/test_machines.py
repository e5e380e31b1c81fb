"""Runs and baselines of several machines: one of another number of threads or processor is another one."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from dynaquant_core.errors import ExperimentError
from dynaquant_core.experiments import Progress, events, run_experiment
from dynaquant_core.experiments.baseline import baseline_key
from dynaquant_core.experiments.config import Experiment, validate
from dynaquant_core.experiments.job import Job
from dynaquant_core.experiments.machine import machine_here
from dynaquant_core.experiments.recording import recording_folder

BASE = ["method=exact", "moments=exact", "steps=20"]


def edit_starts(diary: Path, **changes: Any) -> None:
    """Makes a diary one of another machine, or of a version that did not say which."""
    told = events.read(diary)
    diary.unlink()
    for event in told:
        fields = {key: value for key, value in event.items() if key != "event"}
        if event["event"] == "start":
            machine = fields.pop("machine")
            fields |= {"machine": {**machine, **changes}} if changes else {}
        events.append(diary, event["event"], **fields)


def digest(run: dict[str, Any]) -> str:
    return str(run["final"]["weights_digest"])


def test_a_run_is_compared_with_the_baseline_of_its_own_processor(
    tiny_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if torch.backends.cpu.get_cpu_capability() == "DEFAULT":
        pytest.skip("this processor has one set of kernels only")
    (one,) = run_experiment(tiny_file, [*BASE, "output=one"]).data["runs"]
    monkeypatch.setenv("ATEN_CPU_CAPABILITY", "default")
    (run,) = run_experiment(tiny_file, [*BASE, "failures=1", "output=other"]).data["runs"]
    assert digest(run) != digest(one), "the kernels round in other ways"
    assert run["final"]["same_bits"]
    assert run["final"]["relative_degradation"] == 0.0
    assert [machine["capability"] for machine in run["machines"]] == ["DEFAULT"]


def test_a_run_that_was_begun_keeps_its_number_of_threads(
    tiny_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    settings = [*BASE, "output=out"]
    (before,) = run_experiment(tiny_file, settings).data["runs"]
    shutil.rmtree("runs")
    diary = Path("out/run-0/events.jsonl")
    lines = diary.read_text(encoding="utf-8").splitlines(keepends=True)
    saved = next(place for place, line in enumerate(lines) if json.loads(line)["event"] == "checkpoint")
    diary.write_text("".join(lines[: saved + 1]), encoding="utf-8")  # as a kill leaves it
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    (run,) = run_experiment(tiny_file, settings).data["runs"]
    assert Job.read(Path("out/run-0")).threads == 2
    assert [machine["threads"] for machine in run["machines"]] == [2]
    assert (run["restores"][0]["restored_step"], run["final"]["same_bits"]) == (10, True)
    assert digest(run) == digest(before)


@pytest.mark.parametrize("changes", [{"torch": "1.0"}, {}], ids=["another torch", "not known"])
def test_a_finished_run_is_no_baseline_of_a_machine_that_it_was_not_trained_on(
    tiny_file: Path, changes: dict[str, str]
) -> None:
    settings = [*BASE, "output=out"]
    run_experiment(tiny_file, settings)
    shutil.rmtree("runs")
    edit_starts(Path("out/run-0/events.jsonl"), **changes)
    said: list[Progress] = []
    (run,) = run_experiment(tiny_file, settings, said.append).data["runs"]  # looked at again, elsewhere
    assert (run["final"]["relative_degradation"], run["final"]["same_bits"], said) == (0.0, True, [])
    run_experiment(tiny_file, [*BASE, "failures=1", "output=other"], said.append)
    assert {progress.run for progress in said} == {"baseline of run 1 of 1, seed 0", "run 1 of 1, seed 0"}


def test_a_baseline_of_another_machine_than_the_runs_is_told(
    tiny_file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    settings = [*BASE, "failures=1", "output=out"]
    run_experiment(tiny_file, settings)
    assert "another machine" not in caplog.text
    edit_starts(Path("out/run-0/events.jsonl"), torch="1.0")
    said: list[Progress] = []
    (run,) = run_experiment(tiny_file, settings, said.append).data["runs"]
    assert (said, run["machines"][0]["torch"]) == ([], "1.0"), "that of this machine serves"
    assert "run 1 of 1, seed 0 was trained on another machine than the uninterrupted run" in caplog.text
    assert f"torch 1.0, not {torch.__version__}" in caplog.text


def test_rows_of_a_replay_are_of_one_recording_whatever_torch_made_it(tiny_file: Path) -> None:
    """As after an update of torch, which records anew in a folder of its own."""
    settings = ["kind=replay", "steps=10", "output=out"]
    run_experiment(tiny_file, [*settings, "grid={method: [exact]}"])
    path = Path("out/run-0/job.json")
    job = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps(job | {"recording": "runs/.recordings/of-another-torch"}), encoding="utf-8")
    recorded = Path("out/run-0/recorded.jsonl")
    (final,) = events.find(events.read(recorded), "final")
    grown = [*settings, "grid={method: [exact, none]}"]
    kept = recorded.read_text(encoding="utf-8")
    recorded.write_text(kept.replace(final["weights_digest"], "another"), encoding="utf-8")
    with pytest.raises(
        ExperimentError, match=r"ends in other weights .* out/run-0 was measured on \(another torch"
    ):
        run_experiment(tiny_file, grown)
    recorded.write_text(kept, encoding="utf-8")
    runs = run_experiment(tiny_file, grown).data["runs"]
    assert [[machine["torch"] for machine in run["machines"]] for run in runs] == [[torch.__version__]] * 2


def test_a_model_of_transformers_trains_anew_under_another_version_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tiny: dict[str, Any]
) -> None:
    own = validate(tiny, "tiny")
    data = {"name": "tokens", "source": "tokens.bin", "vocabulary": 40}
    theirs = validate(tiny | {"model": {"name": "hf", "path": "gpt2"}, "data": data}, "tiny")

    def keys(run: Experiment) -> tuple[str, Path]:
        return baseline_key(run, "data", machine_here(1, run.model)), recording_folder(run, "data")

    before = {run.model.name: keys(run) for run in (own, theirs)}
    other = tmp_path / "transformers-0.0.1.dist-info"
    other.mkdir()
    (other / "METADATA").write_text("Metadata-Version: 2.1\nName: transformers\nVersion: 0.0.1\n")
    monkeypatch.syspath_prepend(tmp_path)
    after = {run.model.name: keys(run) for run in (own, theirs)}
    assert after["char_gpt"] == before["char_gpt"]
    assert after["char_gpt"][0] == baseline_key(own, "data", machine_here(1)), "those of before are found"
    assert not set(after["hf"]) & set(before["hf"])
    assert machine_here(1, theirs.model)["transformers"] == "0.0.1"
