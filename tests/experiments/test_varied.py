"""A grid over any key: its runs are told apart in tables, and are never taken for seeds of one setting."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dynaquant_core.experiments import Results, run_experiment, seed_rows, spread_lines, summary
from dynaquant_core.experiments.config import load_experiment, validate
from dynaquant_core.experiments.config.grid import expand
from dynaquant_core.experiments.price import prices
from dynaquant_core.experiments.report.ablation import axis_rows
from dynaquant_core.experiments.report.overhead import overhead_rows
from dynaquant_core.experiments.varied import varied

#: What a line about uninterrupted runs needs of an entry.
ENTRY = {"model": "gpt", "parameters": 1000, "data": "a", "seed": 0, "final": {"baseline": 1.0}}


def runs_of(tiny: dict[str, Any], **changes: Any) -> list[dict[str, Any]]:
    return varied(expand(validate(tiny | changes, "tiny")))


def test_runs_are_told_by_what_their_entries_do_not_say(tiny: dict[str, Any]) -> None:
    grid = {"method": ["lattice", "qd"], "optimizer.lr": [0.01, 0.001], "exact": [[], ["head"]]}
    found = runs_of(tiny, grid=grid, seeds=[0, 1])
    assert found[0] == {"optimizer.lr": 0.01, "exact": []}
    assert len({json.dumps(each) for each in found}) == 4
    assert runs_of(tiny, grid={"threshold": [0.01, 0.05], "failures": [0, 1]}) == [{}] * 4
    assert runs_of(tiny, grid={"max_chain": [1, 8]}) == [{"max_chain": 1}, {"max_chain": 8}]
    assert runs_of(tiny, grid={"steps": [40, 80]}) == [{"steps": 40}, {"steps": 80}]


def test_data_is_told_where_it_differs(tiny: dict[str, Any]) -> None:
    found = runs_of(tiny, grid={"data.source": ["verse.txt", "rhyme.txt"]})
    assert found == [{"data.source": "verse.txt"}, {"data.source": "rhyme.txt"}]
    runs = [
        ENTRY | {"data": each["data.source"], "seed": seed, "varied": each}
        for each in found
        for seed in (0, 1)
    ]
    runs = [run | {"final": {"metric": "loss", "baseline": 1.0 + run["seed"]}} for run in runs]
    assert [line.partition(", data.source")[0] for line in spread_lines(runs)] == ["gpt 1k", "gpt 1k"]
    assert "rhyme.txt, uninterrupted runs" in spread_lines(runs)[1]


def test_failures_are_told_by_their_steps_where_they_are_named(tiny: dict[str, Any]) -> None:
    found = runs_of(tiny, grid={"failures": [{"at": [15]}, {"at": [25]}, 1]})
    assert found == [{"failures.at": [15]}, {"failures.at": [25]}, {}]


def test_no_more_is_told_than_is_needed() -> None:
    runs = expand(load_experiment("restore/steps"))
    told = [(run.model.name, run.optimizer.name, each) for run, each in zip(runs, varied(runs), strict=True)]
    assert {json.dumps(each) for name, _, each in told if name == "char_gpt"} == {"{}"}
    assert all(each == {"optimizer.name": trained} for name, trained, each in told if name == "resnet")


@pytest.mark.parametrize("key", ["evaluate.metric", "data.batch", "steps"])
def test_nothing_else_stands_in_for_what_decides_the_training(tiny: dict[str, Any], key: str) -> None:
    values = {"evaluate.metric": ["loss", "accuracy"], "data.batch": [4, 8], "steps": [40, 80]}[key]
    other = ["moments", "max_chain", "exact"]  # each comes earlier or later, and tells the two apart as well
    grid = [
        {**{name: [value] for name, value in zip(other, settings, strict=True)}, key: [own]}
        for settings, own in zip((["8bit", 2, []], ["exact", 8, ["head"]]), values, strict=True)
    ]
    found = runs_of(tiny, grid=grid)
    assert found == [{key: value} for value in values]
    entries = [
        {
            "model": "gpt",
            "parameters": 1000,
            "data": "a",
            "seed": 0,
            "final": {"baseline": 1.0},
            "varied": each,
        }
        for each in found
    ]
    assert len(spread_lines(entries)) == 2


def test_uninterrupted_runs_on_other_data_are_another_training() -> None:
    lines = spread_lines([ENTRY, {**ENTRY, "data": "b", "seed": 1}])
    assert [line.partition(",")[0] for line in lines] == ["gpt 1k on a", "gpt 1k on b"]


@pytest.mark.parametrize("key", ["optimizer.lr", "optimizer"])
def test_an_axis_is_told_like_the_grid(tiny: dict[str, Any], key: str) -> None:
    values = [0.01, 0.1] if key == "optimizer.lr" else [{"lr": 0.01}, {"lr": 0.1}]
    told = runs_of(tiny, kind="ablate", axis={"key": key, "values": values})
    assert told == [{"optimizer.lr": 0.01}, {"optimizer.lr": 0.1}]


def test_values_of_an_axis_are_no_seeds_of_one_setting(tiny_file: Path) -> None:
    axis = "axis={key: optimizer.lr, values: [0.003, 0.03]}"
    overrides = ["kind=ablate", "of=train", axis, "method=zstd", "failures=1", "restores=swap", "steps=20"]
    data = run_experiment(tiny_file, overrides).data
    found = prices(data)
    assert [(entry.method, entry.seeds) for entry in found] == [
        ("zstd, optimizer.lr 0.003", [0]),
        ("zstd, optimizer.lr 0.03", [0]),
    ]
    assert [row["method"] for row in overhead_rows(data["runs"])] == [entry.method for entry in found]
    rows = axis_rows(data["runs"])
    assert [row["optimizer.lr"] for row in rows] == ["0.003", "0.03"]
    assert "setting" not in rows[0]  # the axis is told once


def test_two_learning_rates_are_no_seeds_of_one_setting(tiny_file: Path) -> None:
    overrides = ["grid={optimizer.lr: [0.003, 0.03]}", "method=zstd", "seeds=[0, 1]", "failures=1"]
    data = run_experiment(tiny_file, [*overrides, "restores=swap"]).data
    first, second = seed_rows(data["runs"])
    assert (first["method"], second["method"]) == ("zstd, optimizer.lr 0.003", "zstd, optimizer.lr 0.03")
    assert (first["seeds"], second["seeds"]) == ("2", "2")
    assert [entry.seeds for entry in prices(data)] == [[0, 1], [0, 1]]
    finals = {run["varied"]["optimizer.lr"]: [] for run in data["runs"]}
    for run in data["runs"]:
        finals[run["varied"]["optimizer.lr"]].append(run["final"]["baseline"])
    means = [f"{sum(values) / 2:.4f}" for values in finals.values()]
    lines = spread_lines(data["runs"])
    assert [line.partition(" ± ")[0].rpartition(" ")[2] for line in lines] == means
    assert "optimizer.lr 0.03" in lines[1]
    rows = summary(Results(Path("results.json"), data))
    assert [row["method"] for row in rows[::2]] == [first["method"], second["method"]]
