"""Several processes at a time, and grids that grow."""

from __future__ import annotations

import csv
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from dynaquant_core.errors import ConfigError, ExperimentError, StorageError
from dynaquant_core.experiments import Progress, events, run_experiment, seed_rows, summary
from dynaquant_core.experiments.children import Children
from dynaquant_core.experiments.config import load_experiment
from dynaquant_core.experiments.config.grid import expand
from dynaquant_core.experiments.crew import Task, run_tasks
from dynaquant_core.experiments.job import Job, write_json
from dynaquant_core.experiments.output import run_folders

EXACT = ["method=exact", "moments=exact"]


def test_runs_side_by_side_train_nothing_twice_and_end_in_the_same_bits(tiny_file: Path) -> None:
    said: list[Progress] = []
    settings = [*EXACT, "steps=20", "grid={failures: [1, 0], seed: [0, 1]}", "output=out"]
    data = run_experiment(tiny_file, settings, said.append, jobs=2).data
    labels = list(dict.fromkeys(progress.run for progress in said))
    assert sorted(labels[:2]) == ["run 3 of 4, seed 0", "run 4 of 4, seed 1"]  # those that are baselines
    assert len(labels) == 4
    assert [(len(run["failures"]), run["seed"]) for run in data["runs"]] == [(1, 0), (1, 1), (0, 0), (0, 1)]
    assert all(run["final"]["same_bits"] for run in data["runs"])
    assert data["environment"]["jobs"] == 2
    assert len(list(Path("runs/.baselines").iterdir())) == 2
    assert {Job.read(Path("out") / f"run-{index}").threads for index in range(4)} == {1}
    said.clear()
    again = run_experiment(tiny_file, settings, said.append).data
    assert (again["runs"], said) == (data["runs"], [])


def test_threads_that_write_the_same_file_do_not_take_it_from_each_other(tmp_path: Path) -> None:
    """Two runs side by side that begin with the same recording."""
    path, begun = tmp_path / "recording.json", threading.Barrier(4)

    def work(_: int) -> None:
        begun.wait()
        for _ in range(100):
            write_json(path, {"steps": 3})

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(4)))
    assert json.loads(path.read_text(encoding="utf-8")) == {"steps": 3}
    assert list(tmp_path.iterdir()) == [path]


def test_nothing_is_left_of_a_file_that_a_disk_has_no_room_for(tmp_path: Path) -> None:
    path = tmp_path / "results.json"
    write_json(path, {"steps": 3})
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, before[1]))
    try:
        with pytest.raises(StorageError, match=r"results\.json: cannot be written"):
            write_json(path, {"steps": "3" * 200})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert list(tmp_path.iterdir()) == [path]
    assert json.loads(path.read_text(encoding="utf-8")) == {"steps": 3}


def test_a_grid_that_gained_rows_runs_only_those(tiny_file: Path) -> None:
    base = [*EXACT, "steps=10", "output=out"]
    (old,) = run_experiment(tiny_file, base).data["runs"]
    said: list[Progress] = []
    grown = [*base, "seeds=[1, 0]"]
    data = run_experiment(tiny_file, grown, said.append).data
    assert {progress.run for progress in said} == {"run 1 of 2, seed 1"}
    assert [(run["seed"], run["folder"]) for run in data["runs"]] == [(1, "run-2"), (0, "run-0")]
    assert data["runs"][1] == old
    with pytest.raises(
        ExperimentError, match=r"different: seed, seeds\); a grid may gain runs but lose none"
    ):
        run_experiment(tiny_file, base)
    with pytest.raises(ExperimentError, match=r"another config \(different: moments\); give another"):
        run_experiment(tiny_file, [*grown, "moments=8bit"])
    rows = list(csv.DictReader(Path("out/results.csv").read_text(encoding="utf-8").splitlines()))
    assert [(row["folder"], row["seed"], row["method"]) for row in rows] == [
        ("run-2", "1", "exact"),
        ("run-0", "0", "exact"),
    ]
    assert float(rows[1]["ratio_all"]) == old["totals"]["ratio"]
    assert (rows[0]["degradation_max"], rows[0]["stale_times_interval"]) == ("0.0", "0.0")
    (row,) = seed_rows(data["runs"])
    assert (row["seeds"], row["kills"], row["final"]) == ("2", "0", "+0.00% ± 0.00%")


@pytest.mark.parametrize("jobs", [1, 2])
def test_what_the_system_refuses_costs_one_row(tiny_file: Path, jobs: int) -> None:
    """It was told as a bug, and the rows after it were not begun."""
    base = [*EXACT, "steps=10", "output=out"]
    run_experiment(tiny_file, base)
    Path("out/run-1/process.log").mkdir(parents=True)
    with pytest.raises(StorageError, match=r"run-1/process\.log cannot be written: Is a directory"):
        run_experiment(tiny_file, [*base, "seeds=[0, 1, 2]"], jobs=jobs)
    kept = json.loads(Path("out/results.json").read_text(encoding="utf-8"))["runs"]
    assert [run["seed"] for run in kept] == [0, 2]


@pytest.mark.parametrize("refused", ["results.json", "run-1/process.log"])
def test_a_report_that_fails_too_does_not_take_the_place_of_what_failed_first(
    tiny_file: Path, caplog: pytest.LogCaptureFixture, refused: str
) -> None:
    """On a full disk the report alone was named where results.json was missing, or where a row had failed."""
    base = [*EXACT, "steps=10", "output=out"]
    run_experiment(tiny_file, base)
    for name in (refused, "report.html"):
        Path("out", name).unlink(missing_ok=True)
        Path("out", name).mkdir(parents=True)
    with pytest.raises(StorageError, match=rf"{refused}.* cannot be written"):
        run_experiment(tiny_file, [*base, "seeds=[0, 1]"])
    assert "out: the report cannot be written" in caplog.text


def test_a_row_that_fails_costs_no_row_that_would_have_had_it_for_its_baseline(tiny_file: Path) -> None:
    base = [*EXACT, "steps=20", "output=out"]
    run_experiment(tiny_file, [*base, "seeds=[7]"])
    Path("out/run-1/process.log").mkdir(parents=True)
    with pytest.raises(StorageError, match=r"run-1/process\.log cannot be written"):
        run_experiment(tiny_file, [*base, "seeds=[7, 0]", "grid={failures: [0, 1]}"])
    kept = json.loads(Path("out/results.json").read_text(encoding="utf-8"))["runs"]
    assert [(run["seed"], len(run["failures"])) for run in kept] == [(7, 0), (7, 1), (0, 1)]
    assert kept[-1]["final"]["same_bits"], "its baseline was trained for it"


def test_an_error_of_the_system_leaves_the_rest_to_go_on() -> None:
    def refused() -> None:
        raise OSError(24, "Too many open files")

    def keep(name: str, result: object) -> None:
        told.append(name)
        if name == "second":
            raise OSError(28, "No space left on device", "results.json")

    told: list[str] = []
    tasks = [Task("first", refused), Task("needs it", str, needs=("first",))]
    tasks += [Task("second", str), Task("third", str)]
    with Children() as children, pytest.raises(StorageError, match=r"refused .*Too many open files\)"):
        run_tasks(tasks, 1, keep, children)
    assert told == ["second", "third"]
    told.clear()
    with (
        Children() as children,
        pytest.raises(StorageError, match=r"No space left on device: 'results\.json'"),
    ):
        run_tasks(tasks[2:], 1, keep, children)
    assert told == ["second", "third"]


def test_a_row_that_fails_may_be_taken_out_again(tiny_file: Path) -> None:
    base = [*EXACT, "steps=10", "output=out", "grid={optimizer.lr: [0.01]}"]
    (kept,) = run_experiment(tiny_file, base).data["runs"]
    page = Path("out/report.html")
    page.unlink()
    with pytest.raises(ExperimentError, match=r"nan|inf"):
        run_experiment(tiny_file, [*base[:-1], "grid={optimizer.lr: [0.01, 1.0e+30]}"])
    assert page.exists()  # of what was finished
    with pytest.raises(ExperimentError, match=r"lose none, and run-1 would be lost; .* no longer wanted"):
        run_experiment(tiny_file, base)
    shutil.rmtree("out/run-1")
    (run,) = run_experiment(tiny_file, base).data["runs"]
    assert run["final"] == kept["final"]


def test_finished_rows_stay_where_a_grid_that_grew_is_interrupted(tiny_file: Path) -> None:
    base = ["steps=10", "output=out", "moments=exact"]
    run_experiment(tiny_file, [*base, "grid={method: [exact, zstd]}"])
    plots = sorted(path.name for path in Path("out/plots").glob("run-1-*"))
    grown = [*base, "grid={method: [none, topn, zstd, exact]}"]

    def interrupt(progress: Progress) -> None:
        if progress.run.startswith("run 2 of 4"):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_experiment(tiny_file, grown, interrupt)
    kept = json.loads(Path("out/results.json").read_text(encoding="utf-8"))["runs"]
    rows = list(csv.DictReader(Path("out/results.csv").read_text(encoding="utf-8").splitlines()))
    for found in (kept, rows):
        told = [(row["method"], row["folder"]) for row in found]
        assert told == [("none", "run-4"), ("zstd", "run-1"), ("exact", "run-0")]
    runs = run_experiment(tiny_file, grown).data["runs"]
    assert [runs[0], *runs[2:]] == kept
    drawn = {path.name.rpartition("-")[0] for path in Path("out/plots").glob("run-*.png")}
    assert drawn == {run["folder"] for run in runs}  # each named after its run's folder
    assert sorted(path.name for path in Path("out/plots").glob("run-1-*")) == plots != []


def test_rows_of_other_data_do_not_stand_beside_new_ones(tiny_file: Path) -> None:
    base = ["steps=10", "output=out", "moments=exact"]
    run_experiment(tiny_file, [*base, "grid={method: [exact]}"])
    verse = Path(os.environ["DYNAQUANT_DATA"]) / "verse.txt"
    verse.write_text(verse.read_text(encoding="utf-8")[::-1], encoding="utf-8")
    before = Path("out/results.json").read_bytes()
    with pytest.raises(ExperimentError, match=r"run-0 was run on other data than verse\.txt holds now; give"):
        run_experiment(tiny_file, [*base, "grid={method: [exact, zstd]}"])
    assert Path("out/results.json").read_bytes() == before


def test_a_method_that_is_spelled_in_two_ways_is_one_run(tiny_file: Path) -> None:
    def methods(*values: str) -> list[str]:
        grid = f"grid={{method: [{', '.join(values)}]}}"
        return [run.method for run in expand(load_experiment(tiny_file, [grid]))]

    assert len(methods("null", "lattice", "{name: lattice}")) == 1
    assert len(methods("lattice", "{name: lattice, max_noise: 3}")) == 2
    assert len(methods("lc", "{name: lc, super_step: 4}", "{name: lc, stages: EPH}")) == 2


def test_a_run_keeps_its_folder_wherever_the_grid_puts_it(workplace: Path, tiny_file: Path) -> None:
    runs = expand(load_experiment(tiny_file, ["grid={threshold: [0.01, 0.02, 0.03]}"]))
    Job(workplace / "run-0", runs[1], saves=True).write()
    Job(workplace / "run-1", runs[0], saves=True).write()
    assert [path.name for path in run_folders(workplace, runs)] == ["run-1", "run-0", "run-2"]
    Job(workplace / "run-2", expand(load_experiment(tiny_file))[0], saves=True).write()
    assert [path.name for path in run_folders(workplace, runs[::-1])] == ["run-3", "run-0", "run-1"]


def test_the_quick_replay_runs_side_by_side(workplace: Path) -> None:
    results = run_experiment("replay/quick", ["output=out"], jobs=2)
    runs = results.data["runs"]
    assert [(run["method"], run["threshold"], run["seed"]) for run in runs[:3]] == [
        ("lattice", 0.05, 0),
        ("lattice", 0.05, 1),
        ("lattice", 0.2, 0),
    ]
    assert all(entry["movement_lost"]["stale"] is not None for run in runs for entry in run["checkpoints"])
    assert len(list(Path("runs/.recordings").iterdir())) == 2
    assert len(summary(results)) == 8
    assert [row["seeds"] for row in seed_rows(runs)] == ["2"] * 4
    assert "Comparison" in Path("out/report.html").read_text(encoding="utf-8")


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_nothing_outlives_its_parent(tiny_file: Path, how: signal.Signals) -> None:
    settings = ["kind=replay", "seeds=[0, 1]", "steps=9000"]
    code = (
        f"from dynaquant_core.experiments import run_experiment as run; run('tiny.yaml', {settings}, jobs=2)"
    )
    path = os.pathsep.join(entry for entry in sys.path if entry)
    environment = os.environ | {"PYTHONPATH": path}
    parent = subprocess.Popen([sys.executable, "-c", code], env=environment, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and not all(recorded()):
        time.sleep(0.05)
    parent.send_signal(how)  # to it alone, not to its processes
    parent.wait(60)
    time.sleep(1.0)
    before = recorded()
    time.sleep(1.0)
    assert recorded() == before
    assert all(before)


def test_a_process_whose_parent_died_before_it_began_touches_nothing(tiny_file: Path) -> None:
    Job(Path("out"), expand(load_experiment(tiny_file))[0], saves=True).write()
    gone = subprocess.Popen([sys.executable, "-c", "pass"])
    gone.wait()
    command = [sys.executable, "-m", "dynaquant_core.experiments.process", "out", "--parent", str(gone.pid)]
    path = os.pathsep.join(entry for entry in sys.path if entry)
    done = subprocess.run(
        command, env=os.environ | {"PYTHONPATH": path}, timeout=120, capture_output=True, check=False
    )
    assert (done.returncode, done.stdout) == (1, b"")
    assert [found.name for found in Path("out").iterdir()] == ["job.json"]


def recorded() -> list[int]:
    """Exact states of each of two recordings."""
    diaries = list(Path("runs/.recordings").glob("*/events.jsonl"))
    return [len(events.find(events.read(path), "recorded")) for path in diaries] if len(diaries) == 2 else [0]


def test_after_an_error_what_does_not_need_it_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    done: list[Any] = []
    failed = threading.Event()

    def fail() -> None:
        failed.set()
        raise ExperimentError("no")

    def slow() -> str:
        failed.wait(10)
        return "slow"

    tasks = [
        Task("a", fail),
        Task("b", slow),
        Task("c", lambda: "other"),
        Task("d", lambda: "never", needs=("a",)),
    ]
    with pytest.raises(ExperimentError, match="no"):
        run_tasks(tasks, 2, lambda *pair: done.append(pair), Children())
    assert sorted(done) == [("b", "slow"), ("c", "other")]
    assert "parts that failed: 1; that need them and were not begun: 1" in caplog.text


def test_of_several_errors_the_first_is_raised_and_all_are_told(caplog: pytest.LogCaptureFixture) -> None:
    def fail(with_what: str) -> None:
        raise ExperimentError(with_what)

    tasks = [Task("a", lambda: fail("first.")), Task("b", lambda: fail("second."))]
    with pytest.raises(ExperimentError, match="first"):
        run_tasks(tasks, 1, lambda *pair: None, Children())
    assert "first." in caplog.text
    assert "second." in caplog.text
    assert "parts that failed: 2" in caplog.text


def test_an_interrupt_kills_what_runs_and_what_comes(tiny_file: Path) -> None:
    job = Job(Path("out"), expand(load_experiment(tiny_file, ["steps=100000"]))[0], saves=False)
    job.write()
    begun = threading.Event()
    codes: list[int | None] = []

    def train() -> None:
        with Path("log").open("ab") as log:
            child = children.start(["out"], log, os.environ)
        with child.output as said:
            for _ in said:
                begun.set()
        codes.append(child.wait())

    def interrupt() -> None:
        begun.wait(60)
        raise KeyboardInterrupt

    with Children() as children:
        with pytest.raises(KeyboardInterrupt):
            run_tasks([Task("a", train), Task("b", interrupt)], 2, lambda *pair: None, children)
        assert codes == [-signal.SIGKILL]
        with pytest.raises(ExperimentError, match="was stopped"):
            train()


@pytest.mark.parametrize("jobs", [0, -1])
def test_a_number_of_jobs_is_at_least_one(tiny_file: Path, jobs: int) -> None:
    with pytest.raises(ConfigError, match="at least 1"):
        run_experiment(tiny_file, [], jobs=jobs)
    with pytest.raises(ConfigError, match="unknown key 'jobs'"):
        run_experiment(tiny_file, ["jobs=2"])
