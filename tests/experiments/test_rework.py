"""Kind rework: whole runs on something tiny, and what people read of them."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml

from dynaquant_core.experiments import Progress, Results, events, run_experiment, seed_rows, summary
from dynaquant_core.experiments.config import load_experiment
from dynaquant_core.experiments.config.grid import expand
from dynaquant_core.experiments.report import write_report, write_table
from dynaquant_core.experiments.report.rework import rework_rows, stage_rows
from dynaquant_core.experiments.rework.chain import Chain
from dynaquant_core.experiments.rework.point import point_of
from dynaquant_core.experiments.trainer import Trainer
from dynaquant_core.methods.base import Hints
from dynaquant_core.methods.registry import resolve_method
from dynaquant_core.store.store import CheckpointStore
from tests.experiments.conftest import enter_workplace
from tests.experiments.rework_kit import STEPS, made, settings
from tests.experiments.states import assert_same

GRID = {"method": ["lc", "scar"]}

#: The other runs of the same training, made in this process.
LC3 = {"method": "lc", "rework": {"size": 0.1, "repeats": 6, "between": [4, STEPS]}}
EXPONENTS = {"method": {"name": "lc", "stages": "E"}}
PROMOTED = {"method": {"name": "lc", "stages": "EP"}}
EVERY = {"method": "none", "rework": {"point": {}, "repeats": 3, "between": [7, 7], "order": "same"}}
TENTH = {
    "method": "none",
    "checkpoint_every": 10,
    "rework": {"point": {}, "repeats": 1, "between": [7, 7], "order": "same"},
}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Results]:
    """Where a grid was run in processes of its own, and what came of it."""
    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.mktemp("rework")
        path = enter_workplace(folder, patch) / "tiny.yaml"
        path.write_text(yaml.safe_dump(settings(grid=GRID)), encoding="utf-8")
        return folder, run_experiment(path, ["output=out"])


@pytest.fixture
def ran(place: tuple[Path, Results], monkeypatch: pytest.MonkeyPatch) -> Results:
    """The results, back in that place."""
    enter_workplace(place[0], monkeypatch)
    return place[1]


@pytest.fixture(scope="module")
def more(place: tuple[Path, Results]) -> Results:
    """The grid's runs, with those that are made here."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        changes = (LC3, EXPONENTS, PROMOTED, EVERY, TENTH)
        own = [made(place[0] / f"own-{index}", change) for index, change in enumerate(changes)]
    finally:
        torch.set_num_threads(before)
    folder = place[0] / "more"
    folder.mkdir()
    data = place[1].data | {"runs": [*place[1].data["runs"], *own]}
    return Results(folder / "results.json", data)


def test_every_method_meets_the_same_failures_of_the_same_training(more: Results) -> None:
    runs = more.data["runs"]
    points = [(run["kind"], run["method"], run["point"]) for run in runs[:3]]
    assert points == [
        ("rework", "lc", {"bits": 2}),
        ("rework", "scar", {"share": 0.05}),
        ("rework", "lc", {"bits": 3}),
    ]
    assert len({run["training_digest"] for run in runs}) == 1
    for run in runs[:5]:
        rework = run["rework"]
        assert rework["failed"] == rework["restored"] == runs[0]["rework"]["failed"]
        assert len(rework["iterations"]) == rework["repeats"] == 6
        assert rework["mean"] == pytest.approx(np.mean(rework["iterations"]))
        assert rework["low"] <= rework["mean"] <= rework["high"]
        assert len(rework["bytes"]) == STEPS
    lc, scar = (run["rework"]["mean"] for run in runs[:2])
    assert scar > lc > 0, "one partition of five every time lags far behind"


def test_what_a_full_checkpoint_costs_is_known_beforehand(more: Results) -> None:
    every, tenth = more.data["runs"][-2:]
    assert every["rework"]["iterations"] == [0, 0, 0], "restored bit for bit at the very failure"
    assert (tenth["rework"]["failed"], tenth["rework"]["restored"]) == ([7], [0])
    assert tenth["rework"]["iterations"] == [7], "the same batches again, to the same loss"
    assert (tenth["rework"]["low"], tenth["rework"]["high"]) == (None, None)
    assert every["rework"]["share"] == pytest.approx(1, abs=0.001)


def test_bytes_are_those_of_the_streams_that_the_method_writes(ran: Results) -> None:
    """A chain made here, through drafts of the method alone."""
    (run, *_) = expand(load_experiment("tiny.yaml"))
    trainer, method, held, sizes = Trainer(run), resolve_method("lc"), None, []
    for step in range(STEPS + 1):
        flat = torch.cat([own.detach().reshape(-1) for own in trainer.model.parameters()])[None]
        draft = method.draft({"w": flat}, held, method.config({"bits": 2}), Hints())
        streams, held = draft.encode()
        sizes.append(sum(len(stream.payload) for stream in streams))
        if step < STEPS:
            trainer.advance()
    found = ran.data["runs"][0]["rework"]
    assert [found["key_bytes"], *found["bytes"]] == sizes
    assert found["ratio"] == pytest.approx(4 * 1120 * STEPS / sum(sizes[1:]))


def test_the_report_compares_pools_and_stages(more: Results) -> None:
    runs = more.data["runs"]
    write_report(more)
    write_table(more)
    rows = rework_rows(runs)
    both = [runs[index]["rework"]["iterations"] for index in (1, 0)]
    assert rows[1]["x lc"].startswith(f"{sum(both[0]) / sum(both[1]):.2f} (")
    assert rows[0]["x lc"] == "-"
    (stages,) = stage_rows(runs)
    shares = {run["options"]["stages"]: run["rework"]["share"] for run in (runs[3], runs[4], runs[0])}
    assert stages["E saves"] == f"{1 - shares['E']:.2%}"
    assert stages["P adds"] == f"{shares['E'] - shares['EP']:+.2%}"
    assert stages["H adds"] == f"{shares['EP'] - shares['EPH']:+.2%}"
    assert [row["rework"] for row in summary(more)][-1] == "7.00"
    assert seed_rows(runs) == [], "two sizes are no seeds of one setting"
    folder = more.path.parent
    page = (folder / "report.html").read_text(encoding="utf-8")
    assert "Stages of LC-Checkpoint" in page
    assert (folder / "plots" / "rework.png").is_file()
    table = list(csv.DictReader((folder / "results.csv").read_text(encoding="utf-8").splitlines()))
    assert (table[2]["size"], table[2]["point"]) == ("0.1", '{"bits": 3}')
    assert float(table[2]["rework_mean"]) == runs[2]["rework"]["mean"]
    assert (table[2]["threshold"], table[2]["checkpoints"], table[2]["held_seconds"]) == ("", "", "")
    json.dumps(more.data, allow_nan=False)


def test_finished_runs_and_repeats_are_not_repeated(ran: Results) -> None:
    said: list[Progress] = []
    again = run_experiment("tiny.yaml", ["output=out"], said.append)
    assert (again.data["runs"], said) == (ran.data["runs"], [])

    def interrupt(progress: Progress) -> None:
        if progress.step == STEPS and len(repeats("cut")) >= 2:
            raise KeyboardInterrupt

    one = ["grid=null", "method=scar", "output=cut"]
    with pytest.raises(KeyboardInterrupt):
        run_experiment("tiny.yaml", one, interrupt)
    before = repeats("cut")
    assert 2 <= len(before) < 6, "it was cut short in the middle of its repeats"
    (run,) = run_experiment("tiny.yaml", one).data["runs"]
    after = repeats("cut")
    assert after[: len(before)] == before
    assert [event["repeat"] for event in after] == list(range(6))
    assert run["rework"]["iterations"] == ran.data["runs"][1]["rework"]["iterations"]


def repeats(folder: str) -> list[Any]:
    return events.find(events.read(Path(folder) / "run-0" / "events.jsonl"), "repeat")


def test_a_reader_of_a_store_has_what_a_failure_is_restored_from(ran: Results, tmp_path: Path) -> None:
    (run,) = expand(load_experiment("tiny.yaml", ["grid=null", "method=lc", "rework.flat=false"]))
    trainer, chain = Trainer(run), Chain(resolve_method("lc"), point_of(run), flat=False)
    store = CheckpointStore(tmp_path / "store", method="lc", moments="exact", max_chain=20)
    for step in range(4):
        state = {name: own.detach().clone() for name, own in trainer.model.named_parameters()}
        link = chain.save(step, state)
        store.save(step, state, config=point_of(run))
        trainer.advance()
    assert_same(dict(CheckpointStore(tmp_path / "store").load(3)), dict(link.restored))
    assert store.info(3).parts["weight"]["stored_bytes"] == link.weight_bytes == link.stored_bytes
