"""Whole experiments: real processes, real SIGKILLs, real stores."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from dynaquant_core.errors import ConfigError, ExperimentError, StorageError, StoreLockedError
from dynaquant_core.experiments import Progress, events, run_experiment
from dynaquant_core.experiments.config import validate
from dynaquant_core.experiments.output import claim
from dynaquant_core.store.store import CheckpointStore
from tests.programs import children_that_run

STAGES = {"collector", "held", "search", "draft", "encode", "commit"}
EXACT = ["method=exact", "moments=exact"]


def store_of(results: Any, run: int = 0) -> CheckpointStore:
    return CheckpointStore(results.path.parent / f"run-{run}" / "store")


def test_a_warm_up_that_the_run_does_not_end_is_told_once(
    tiny_file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    settings = [*EXACT, "steps=10", "optimizer.warmup=40", "output=out", "seeds=[0, 1]"]
    run_experiment(tiny_file, settings)
    told = [record.getMessage() for record in caplog.records if "warmup" in record.getMessage()]
    (remark,) = told
    assert remark.startswith(
        "optimizer.warmup: 40 steps are more than the run's 10, so the learning rate ends"
    )
    assert remark.endswith("at 0.00075 and never reaches lr: 0.003.")


def test_a_killed_run_resumes_and_everything_is_recorded(tiny_file: Path) -> None:
    said: list[Progress] = []
    results = run_experiment(tiny_file, ["failures=2", "output=out", "exact=[nope*]"], said.append)
    data = json.loads(results.path.read_text(encoding="utf-8"))
    assert data == results.data
    assert (data["format"], data["config"]["failures"]) == (1, 2)
    (run,) = data["runs"]
    assert run["failures"] == [15, 25]
    assert [(r["failed_step"], r["restored_step"]) for r in run["restores"]] == [(15, 10), (25, 20)]
    assert all(0 <= r["rework_steps"] <= 10 for r in run["restores"])
    assert [entry["step"] for entry in run["checkpoints"]] == [10, 20, 30, 40]
    assert run["final"]["baseline"] != run["final"]["value"]
    assert abs(run["final"]["relative_degradation"]) < 0.2
    messages = [progress.message for progress in said]
    assert messages.count("killed (SIGKILL)") == 2
    assert len([message for message in messages if "'nope*' covers no tensor" in message]) == 1  # not a life
    assert (Path("out") / "report.html").exists()
    check_entries(run, store_of(results))
    # A run without failures is its own baseline: saving, search included, changes nothing.
    saved = run_experiment(tiny_file, ["output=saved"]).data["runs"][0]["final"]
    assert saved["value"] == saved["baseline"] == run["final"]["baseline"]


def check_entries(run: dict[str, Any], store: CheckpointStore) -> None:
    for entry in run["checkpoints"]:
        info = store.info(entry["step"])
        parts = entry["parts"].values()
        assert entry["stored_bytes"] == info.stored_bytes == sum(part["stored_bytes"] for part in parts)
        assert entry["raw_bytes"] == sum(part["raw_bytes"] for part in parts)
        assert entry["met"]
        assert entry["degradation"]["search"] <= run["threshold"]
        assert entry["degradation"]["heldout_se"] > 0
        assert set(entry["seconds"]) <= STAGES
        assert entry["seconds"]["encode"] > 0
    files = [path for path in Path(store.path).rglob("*") if path.suffix == ".dq"]
    assert sum(path.stat().st_size for path in files) == run["totals"]["stored_bytes"]
    assert run["checkpoints"][0]["unchanged"] is None
    # After a restore the first delta is measured against what was restored.
    assert run["checkpoints"][1]["movement_lost"]["er"] is not None
    assert run["totals"]["weights_ratio"] > run["totals"]["ratio"] > 2


def test_with_everything_exact_killing_changes_nothing(tiny_file: Path) -> None:
    settings = [*EXACT, "model.dropout=0.1"]
    whole = run_experiment(tiny_file, [*settings, "output=whole"])
    killed = run_experiment(tiny_file, [*settings, "failures=1", "output=killed"])
    final = killed.data["runs"][0]["final"]
    assert final["relative_degradation"] == 0.0
    assert whole.data["runs"][0]["final"]["value"] == final["value"]
    one, other = (store_of(results).load(40) for results in (killed, whole))
    assert same(one, other)
    assert killed.data["runs"][0]["restores"][0]["rework_steps"] == 0


def same(one: Any, other: Any) -> bool:
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other)
    return bool((one == other).all()) if hasattr(one, "all") else bool(one == other)


def test_nothing_is_trained_twice(tiny_file: Path) -> None:
    said: list[Progress] = []
    grid = "grid={failures: [1, 0], threshold: [0.05]}"
    results = run_experiment(tiny_file, [grid, "output=out"], said.append)
    first, second = results.data["runs"]
    assert (len(first["failures"]), len(second["failures"])) == (1, 0)
    assert first["final"]["baseline"] == second["final"]["value"] == second["final"]["baseline"]
    assert not [progress for progress in said if progress.run.startswith("baseline")]
    said.clear()
    again = run_experiment(tiny_file, [grid, "output=out"], said.append)
    assert said == []
    assert again.data["runs"] == results.data["runs"]


def test_a_run_that_began_anew_is_a_baseline_of_one_life(tiny_file: Path) -> None:
    def interrupt(progress: Progress) -> None:
        if progress.step:
            raise KeyboardInterrupt

    settings = [*EXACT, "steps=200", "checkpoint_every=200", "output=out"]
    with pytest.raises(KeyboardInterrupt):
        run_experiment(tiny_file, settings, interrupt)
    (run,) = run_experiment(tiny_file, settings).data["runs"]
    assert [restore["restored_step"] for restore in run["restores"]] == [0]
    assert [step for step, _ in run["baseline_curve"]] == list(range(1, 201))


def test_an_interrupted_experiment_goes_on_and_retakes_what_was_not_measured(tiny_file: Path) -> None:
    def interrupt(progress: Progress) -> None:
        if progress.step > 32:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_experiment(tiny_file, ["output=out"], interrupt)
    diary = Path("out/run-0/events.jsonl")
    lines = diary.read_text(encoding="utf-8").splitlines(keepends=True)
    cut = next(i for i, line in enumerate(lines) if json.loads(line).get("kind") and '"step": 30' in line)
    # As after a death between the commit of step 30 and the line in the diary.
    diary.write_text("".join(lines[:cut]) + lines[cut][:50], encoding="utf-8")
    (run,) = run_experiment(tiny_file, ["output=out"]).data["runs"]
    assert run["failures"] == []
    (restore,) = run["restores"]
    assert restore["restored_step"] == 20
    assert [entry["step"] for entry in run["checkpoints"]] == [10, 20, 30, 40]
    assert all(entry["met"] for entry in run["checkpoints"])


def test_what_is_saved_again_behind_damaged_checkpoints_counts_once(tiny_file: Path) -> None:
    """The threshold was met at "6 of 6" in a run of four, and of the file of a step an older entry told."""

    def interrupt(progress: Progress) -> None:
        if progress.step > 32:
            raise KeyboardInterrupt

    settings, diary = ["output=out", "max_chain=0"], Path("out/run-0/events.jsonl")
    with pytest.raises(KeyboardInterrupt):
        run_experiment(tiny_file, settings, interrupt)
    for path in sorted(Path("out/run-0/store").glob("*.dq"))[1:3]:
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 1
        path.write_bytes(content)
    with pytest.raises(KeyboardInterrupt):
        run_experiment(tiny_file, settings, interrupt)
    lines = diary.read_text(encoding="utf-8").splitlines(keepends=True)
    second = [i for i, line in enumerate(lines) if json.loads(line).get("kind") and '"step": 30' in line][1]
    diary.write_text("".join(lines[:second]), encoding="utf-8")  # the second 30 was not measured
    results = run_experiment(tiny_file, settings)
    (run,) = results.data["runs"]
    assert [restore["restored_step"] for restore in run["restores"]] == [10, 20]
    assert [entry["step"] for entry in run["checkpoints"]] == [10, 20, 30, 40]
    check_entries(run, store_of(results))


def test_an_output_folder_is_its_experiments_own(workplace: Path, tiny: dict[str, Any]) -> None:
    mine = validate(tiny | {"output": "out"}, "tiny")
    assert claim(mine) == claim(mine) == Path("out")
    Path("out/run-0").mkdir()
    Path("out/run-0/events.jsonl").touch()
    with pytest.raises(ExperimentError, match=r"another config \(different: threshold\)"):
        claim(validate(tiny | {"output": "out", "threshold": 0.2}, "tiny"))
    Path("foreign").mkdir()
    (Path("foreign") / "thesis.txt").write_text("mine", encoding="utf-8")
    for output, message in (("foreign", "is not empty"), ("foreign/thesis.txt", "is a file")):
        with pytest.raises(ExperimentError, match=message):
            claim(validate(tiny | {"output": output}, "tiny"))
    assert (Path("foreign") / "thesis.txt").read_text(encoding="utf-8") == "mine"
    assert claim(validate(tiny, "tiny")) == Path("runs/tiny")


@pytest.mark.parametrize(
    ("config", "beside"),
    [
        ('{"model_type": "gpt2"}', ["model.safetensors"]),
        ('{"model_type": "gpt2"}', []),
        ("[1]", []),
        ("not json", []),
        ('{"name": "x", "model": {}, "data": {}, "steps": 3}', ["thesis.txt"]),
    ],
)
def test_a_folder_of_something_else_with_a_config_is_left_alone(
    workplace: Path, tiny: dict[str, Any], config: str, beside: list[str]
) -> None:
    folder = Path("foreign")
    folder.mkdir()
    for name in ("config.json", *beside):
        (folder / name).write_text(config, encoding="utf-8")
    with pytest.raises(ExperimentError, match="is not empty and holds no experiment"):
        claim(validate(tiny | {"output": "foreign"}, "tiny"))
    assert {path.name: path.read_text(encoding="utf-8") for path in folder.iterdir()} == dict.fromkeys(
        ["config.json", *beside], config
    )


def test_an_experiment_that_failed_before_its_first_step_may_be_mended(
    workplace: Path, tiny: dict[str, Any]
) -> None:
    folder = claim(validate(tiny | {"output": "out"}, "tiny"))
    (folder / "config.json").write_text(json.dumps(tiny | {"key_of_an_older_version": 1}), encoding="utf-8")
    (folder / "config.json.123.456").touch()  # a process that was killed while it wrote
    (folder / "run-0").mkdir()
    (folder / "run-0" / "job.json").touch()
    assert claim(validate(tiny | {"output": "out", "threshold": 0.2}, "tiny")) == folder
    assert json.loads((folder / "config.json").read_text(encoding="utf-8"))["threshold"] == 0.2
    assert not (folder / "run-0" / "job.json").exists()
    assert not (folder / "config.json.123.456").exists()


def test_a_folder_whose_first_config_was_being_written_is_taken(
    workplace: Path, tiny: dict[str, Any]
) -> None:
    (workplace / "out").mkdir()
    (workplace / "out" / "config.json.12345.140021").write_text('{"half', encoding="utf-8")
    claim(validate(tiny | {"output": "out"}, "tiny"))
    assert [path.name for path in (workplace / "out").iterdir()] == ["config.json"]


@pytest.mark.parametrize(
    ("override", "error", "message"),
    [
        ("data.source=missing.txt", ExperimentError, "DYNAQUANT_DATA"),
        ("method=zip9", ConfigError, "no method 'zip9'"),
        ("method.colour=red", ConfigError, "colour"),
        ("moments=4bit", ConfigError, "4bit"),
    ],
)
def test_what_cannot_run_is_refused_before_anything_is_written(
    tiny_file: Path, override: str, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        run_experiment(tiny_file, [override, "output=out"])
    assert not Path("out").exists()


def test_a_folder_that_keeps_no_baseline_is_told_before_the_training(tiny_file: Path) -> None:
    """It was told after it, and the results were lost."""
    Path("runs").write_text("not a folder")
    with pytest.raises(StorageError, match=r"runs.*run it from another folder"):
        run_experiment(tiny_file, ["failures=0", "output=out"])
    assert not Path("out").exists()


def test_a_config_that_failed_before_its_first_step_can_be_mended(tiny_file: Path) -> None:
    short = ["steps=10", "output=out"]
    with pytest.raises(ExperimentError, match="too few"):
        run_experiment(tiny_file, [*short, "data.context=100000"])
    (run,) = run_experiment(tiny_file, short).data["runs"]
    assert [entry["step"] for entry in run["checkpoints"]] == [10]


def test_a_training_process_that_fails_is_one_clear_error(tiny_file: Path) -> None:
    with pytest.raises(
        ExperimentError, match=r"^run 1 of 1, seed 0: training loss is (nan|inf).*lower optim"
    ):
        run_experiment(tiny_file, [*EXACT, "optimizer.lr=1e30", "output=out"])


@pytest.mark.parametrize(("failures", "whose"), [(0, ""), (1, "baseline of ")])
def test_a_process_that_dies_is_told_and_its_log_is_where_that_says(
    tiny_file: Path, failures: int, whose: str
) -> None:
    def kill(progress: Progress) -> None:
        if progress.step > 10:
            (server,) = children_that_run("dynaquant_core.experiments.forkserver")
            (child,) = server.children()
            child.kill()

    long = [*EXACT, "steps=100000", "checkpoint_every=10000", "output=out", f"failures={failures}"]
    said = rf"^{whose}run 1 of 1, seed 0: .* ended with code -9 \(it said nothing\); its log is (.*)\.$"
    with pytest.raises(ExperimentError, match=said) as caught:
        run_experiment(tiny_file, long, kill)
    log = Path(re.findall(said, str(caught.value))[0])
    log.write_text("KeyError: 'of an earlier life'\n", encoding="utf-8")
    with pytest.raises(ExperimentError, match=said):
        run_experiment(tiny_file, long, kill)


def test_a_training_that_only_its_evaluation_shows_to_have_diverged_is_one_clear_error(
    tiny_file: Path,
) -> None:
    settings = [*EXACT, "steps=1", "checkpoint_every=1", "optimizer.lr=1e30", "output=out"]
    with pytest.raises(ExperimentError, match=r"evaluation at step 1 gives (nan|inf).*lower optimizer.lr"):
        run_experiment(tiny_file, settings)


def test_a_torn_last_line_of_a_diary_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    events.append(path, "start", restored=0)
    with path.open("a", encoding="utf-8") as file:
        file.write('{"event": "loss", "st')
    events.append(path, "final", step=1, value=2.0)
    assert [event["event"] for event in events.read(path)] == ["start", "final"]


def test_a_run_on_real_images(real_data: Path, workplace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DYNAQUANT_DATA", str(real_data))
    config = {
        "name": "images",
        "model": {"name": "resnet", "widths": [8, 16, 32]},
        "data": {
            "name": "cifar",
            "source": "cifar10/cifar10_lossless_subset.npz",
            "batch": 32,
            "search_images": 200,
            "heldout_images": 200,
        },
        "optimizer": {"name": "sgd", "lr": 0.05, "momentum": 0.9, "weight_decay": 5e-4},
        "steps": 30,
        "checkpoint_every": 10,
        "threshold": 0.05,
        "evaluate": {"batch": 50},
    }
    path = workplace / "images.yaml"
    path.write_text(yaml.safe_dump(config), encoding="utf-8")
    (run,) = run_experiment(path).data["runs"]
    assert [entry["met"] for entry in run["checkpoints"]] == [True] * 3
    assert Path("runs/images/results.json").exists()
    assert list(Path("runs/.baselines").iterdir())


def test_two_processes_do_not_share_an_output_folder(tiny_file: Path) -> None:
    settings = [*EXACT, "steps=10", "output=out"]
    program = (
        "import sys; from pathlib import Path; from dynaquant_core.experiments.output import claimed; "
        "from dynaquant_core.experiments.config import load_experiment\n"
        "with claimed(load_experiment('tiny.yaml', sys.argv[1:])): print('in', flush=True); sys.stdin.read()"
    )
    command = [sys.executable, "-c", program, *settings]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment, text=True
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "in\n"
        before = Path("out/config.json").read_bytes()
        with pytest.raises(StoreLockedError, match=rf"output folder 'out' is being .* \(pid {other.pid}\)"):
            run_experiment(tiny_file, [*settings, "seeds=[0, 1]"])
        assert Path("out/config.json").read_bytes() == before
        other.kill()  # its right dies with it
    assert len(run_experiment(tiny_file, settings).data["runs"]) == 1
    assert not list(Path("out").glob(".*"))
