"""Kind ablate from its YAML to the page: one axis, real replays and trainings, what a grown axis runs."""

from __future__ import annotations

import copy
import csv
import json
import statistics
from pathlib import Path
from typing import Any

import pytest
import yaml

from dynaquant_core.errors import ConfigError, ExperimentError
from dynaquant_core.experiments import Progress, Results, ablation_parts, run_experiment, shipped_configs
from dynaquant_core.experiments.config import load_experiment, validate
from dynaquant_core.experiments.config.grid import expand
from dynaquant_core.experiments.figures import figures
from dynaquant_core.experiments.narrow import method_of, narrowed
from dynaquant_core.experiments.report.ablation import axis_rows
from dynaquant_core.methods.registry import resolve_method
from tests.experiments.conftest import enter_workplace, tiny_settings

POINT = {"bins": 8, "prune": 0.2}


def settings(**changes: Any) -> dict[str, Any]:
    kind = {"kind": "ablate", "method": "dynaquant", "threshold": 0.05, "steps": 20}
    return tiny_settings() | kind | changes


def axis(key: str, *values: Any) -> dict[str, Any]:
    return {"key": key, "values": list(values)}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where an ablation of the search was run: searched against one fixed point."""
    folder = tmp_path_factory.mktemp("ablate")
    with pytest.MonkeyPatch.context() as patch:
        path = enter_workplace(folder, patch) / "tiny.yaml"
        path.write_text(yaml.safe_dump(settings(axis=axis("search", True, POINT))), encoding="utf-8")
        run_experiment(path, ["output=first"])
    return folder


@pytest.fixture
def searched(place: Path, monkeypatch: pytest.MonkeyPatch) -> Results:
    """The same, back in that place."""
    path = enter_workplace(place, monkeypatch) / "first" / "results.json"
    return Results(path, json.loads(path.read_text(encoding="utf-8")))


def test_one_thing_varies_and_the_results_say_which(searched: Results) -> None:
    one, other = searched.data["runs"]
    assert (one["kind"], one["of"], one["measure"]) == ("ablate", "replay", "saves")
    assert [run["axis"] for run in (one, other)] == [
        {"key": "search", "value": True},
        {"key": "search", "value": POINT},
    ]
    assert all(entry["evaluations"] > 0 for entry in one["checkpoints"])
    assert [entry["evaluations"] for entry in other["checkpoints"]] == [0, 0]
    for entry in other["checkpoints"]:  # stored at that point, whatever it cost
        assert entry["config"].items() >= POINT.items()
        assert entry["degradation"]["search"] is not None
    with (searched.path.parent / "results.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["axis_key"] for row in rows] == ["search", "search"]
    assert [json.loads(row["axis_value"]) for row in rows] == [True, POINT]


def test_the_page_and_the_table_show_figures_against_the_axis(searched: Results) -> None:
    (part,) = ablation_parts(searched.data["runs"])
    assert part.title == "Against search"
    assert [row["search"] for row in part.rows] == ["True", "bins 8, prune 0.2"]
    folder = searched.path.parent
    assert "Against search" in (folder / "report.html").read_text(encoding="utf-8")
    assert (folder / "plots" / "axis.png").stat().st_size > 5000


def test_a_grown_axis_runs_what_is_new_and_a_shrunk_one_is_refused(searched: Results) -> None:
    said: list[Progress] = []
    grown = [f"axis={json.dumps(axis('search', {'bins': 4}, True, POINT))}", "output=first"]
    runs = run_experiment("tiny.yaml", grown, said.append).data["runs"]
    assert {progress.run for progress in said} == {"run 1 of 3, seed 0"}
    assert runs[1:] == searched.data["runs"]
    assert runs[0]["checkpoints"][0]["config"]["bins"] == 4
    with pytest.raises(ExperimentError, match=r"another config \(different: axis\); a grid may gain runs"):
        run_experiment("tiny.yaml", [f"axis={json.dumps(axis('search', True))}", "output=first"])


def test_trained_runs_show_what_the_axis_costs_in_the_end(workplace: Path) -> None:
    failures = settings(of="train", restores="swap", axis=axis("failures", 0, 1))
    Path("tiny.yaml").write_text(yaml.safe_dump(failures | {"steps": 12, "checkpoint_every": 4}), "utf-8")
    runs = run_experiment("tiny.yaml").data["runs"]
    assert [(run["axis"]["value"], len(run["restores"])) for run in runs] == [(0, 0), (1, 1)]
    (part,) = ablation_parts(runs)
    assert [row["failures"] for row in part.rows] == ["0", "1"]
    costs = [run["final"]["relative_degradation"] for run in runs]
    assert costs[0] == 0.0
    assert [row["final degradation"] for row in part.rows] == [f"{cost:+.2%}" for cost in costs]


def test_seeds_are_put_together_and_settings_kept_apart(searched: Results) -> None:
    one = searched.data["runs"][0]
    other = copy.deepcopy(one) | {"seed": 1}
    for entry, change in zip(other["checkpoints"], (0.02, 0.04), strict=True):
        entry["degradation"]["search"] = one["checkpoints"][0]["degradation"]["search"] + change
    tighter = copy.deepcopy(one) | {"threshold": 0.01}
    first, second = axis_rows([one, tighter, other])
    assert (first["setting"], first["seeds"]) == ("5%", "2")
    assert (second["setting"], second["seeds"]) == ("1%", "1")
    means = [figures(run)["degradation_mean"] for run in (one, other)]
    spread = statistics.stdev(means)
    assert first["degradation"] == f"{sum(means) / 2:+.2%} ± {spread:.2%}"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({}, "kind: ablate needs an axis, as axis: {key: method.sigma"),
        ({"axis": axis("method.sigma")}, "axis.values: list should have at least 1 item"),
        ({"axis": {"key": "method.sigma"}}, "axis.values: this key is required"),
        ({"axis": {"kee": "a", "values": [1]}}, "axis: unknown key 'kee'; did you mean 'key'"),
        ({"axis": axis("threshhold", 0.1)}, "axis threshhold=0.1: unknown key 'threshhold'; did you mean"),
        ({"axis": axis("optimizer.rl", 0.1)}, "optimizer: unknown key 'rl'"),
        ({"axis": axis("seed", 1, 2)}, "'seed' cannot be an axis"),
        ({"axis": axis("output", "a")}, "'output' cannot be an axis"),
        ({"axis": axis("steps", 20, 20)}, "value 20 is there twice"),
        ({"axis": axis("threshold", 0.1), "grid": {"threshold": [0.2]}}, "'threshold' is set by the grid's"),
        (
            {"axis": axis("method", "qd"), "grid": {"method.x": [2]}},
            "'method' is set by the grid's 'method.x'",
        ),
        ({"axis": axis("failures", 0, 1)}, "axis failures=1: a replay trains nothing"),
        ({"kind": "train", "axis": axis("steps", 20)}, "axis belongs to kind: ablate"),
        ({"kind": "replay", "measure": "bins"}, "measure belongs to kind: ablate"),
        ({"measure": "bins", "of": "train"}, "measure: bins looks at a recording; it needs of: replay"),
        (
            {"measure": "bins", "fix": {"bins": 4}, "search": False},
            "measure: bins drafts .* so fix and search would change nothing; leave it out",
        ),
        ({"measure": "bins", "as_restored": True}, "so as_restored would change nothing"),
        ({"measure": "bins", "axis": axis("max_chain", 8, 16)}, "axis max_chain=16: .* so max_chain would"),
        ({"measure": "speed"}, "measure: expected 'saves', 'coders' or 'bins'"),
        ({"search": 3, "axis": axis("steps", 20)}, "search: expected true, false"),
        ({"search": {"bins": 8}, "fix": {"prune": 0.0}, "axis": axis("steps", 20)}, "not both"),
        ({"time_limit": 0, "measure": "bins"}, "time_limit: expected greater than 0"),
    ],
)
def test_a_bad_axis_is_one_clear_error(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        expand(validate(settings(**changes), "tiny"))


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["axis={key: method.sigam, values: [0.1]}"], "no setting 'sigam'; did you mean 'sigma'"),
        (["axis={key: fix.protekt, values: [0.1]}"], "no axis 'protekt'; did you mean 'protect'"),
        (["axis={key: fix.protect, values: [7]}"], r"protect must be a number in \[0.0, 1.0\), got 7"),
        (["axis={key: search, values: [{binz: 8}]}"], "no setting 'binz'; did you mean 'bins'"),
        (["measure=coders", "method=qd"], "measure: coders knows the methods dynaquant, not 'qd'"),
        (["measure=bins", "method=lattice"], "measure: bins knows the methods dynaquant, qd, cnr, gobo"),
    ],
)
def test_what_the_method_does_not_know_is_refused_before_anything_runs(
    workplace: Path, overrides: list[str], message: str
) -> None:
    Path("tiny.yaml").write_text(yaml.safe_dump(settings(axis=axis("steps", 20))), encoding="utf-8")
    with pytest.raises(ConfigError, match=message):
        run_experiment("tiny.yaml", overrides)
    assert not Path("runs").exists()


def test_a_fixed_axis_has_one_value_and_the_promise_stays() -> None:
    (run,) = expand(validate(settings(axis=axis("steps", 20), fix={"protect": 0.0, "prune": 0.1}), "tiny"))
    space, free = method_of(run).space(gradients=True), resolve_method("dynaquant").space(gradients=True)
    assert (space.axes["protect"], space.axes["prune"]) == ((0.0,), (0.1,))
    assert space.axes["bins"] == free.axes["bins"]
    beyond = [(config.bins, config.protect, config.prune) for config in space.beyond[:-1]]
    assert beyond == [(48, 0.0, 0.1), (64, 0.0, 0.1)], "bfloat16 prunes nothing"
    assert space.beyond[-1] == free.beyond[-1]
    assert narrowed(free, {"prune_metric": "sensitivity"}).beyond == free.beyond, "there nothing is pruned"
    scale = resolve_method("lattice").space(gradients=True)
    assert {config.scale for config in narrowed(scale, {"scale": 0.2}).beyond} == {0.2, "exact"}
    assert (space.default.protect, space.default.prune) == (0.0, 0.1)
    assert narrowed(free, {"prune_metric": "magnitude"}).variants == {"prune_metric": ("magnitude",)}
    assert resolve_method("dynaquant").space(gradients=True) == free  # nobody else's is narrowed


def test_a_fixed_axis_stays_where_the_threshold_is_missed_and_the_table_counts_what_could_not(
    workplace: Path,
) -> None:
    fixed = settings(axis=axis("fix", {"prune": 0.9}, {"bins": 2, "prune": 0.0}, {}), threshold=0.001)
    (workplace / "tiny.yaml").write_text(yaml.safe_dump(fixed), encoding="utf-8")
    runs = run_experiment("tiny.yaml", ["output=out"]).data["runs"]
    for run in runs:
        for entry in run["checkpoints"]:
            assert entry["met"]
            config = entry["config"]
            assert config["bins"] == "exact" or all(config[key] == run["fix"][key] for key in run["fix"])
    rows = axis_rows(runs)
    held = [sum(entry["config"]["bins"] != "exact" for entry in run["checkpoints"]) for run in runs]
    assert min(held[:2]) < 2, "the threshold asks for it"
    assert [row["at fix"] for row in rows] == [f"{held[0]:.1f}", f"{held[1]:.1f}", "-"]
    assert [row["met"] for row in rows] == ["2.0"] * 3
    loose = [run | {"checkpoints": run["checkpoints"][:0]} for run in runs]
    assert "at fix" not in axis_rows(loose)[0]


def test_the_axis_crosses_with_the_grid_and_varies_faster() -> None:
    varied = settings(axis=axis("method.sigma", 0.1, 0.9), grid={"threshold": [0.1, 0.2]}, seeds=[0, 1])
    runs = expand(validate(varied, "tiny"))
    assert [(run.threshold, run.method["sigma"], run.seed) for run in runs] == [
        (threshold, sigma, seed) for threshold in (0.1, 0.2) for sigma in (0.1, 0.9) for seed in (0, 1)
    ]
    assert all(expand(run) == [run] for run in runs)  # what a job's file holds is a run again


def test_the_shipped_ablations_are_sound() -> None:
    names = [name for name in shipped_configs() if name.startswith("ablation/")]
    assert {name for name in names if "bins_" in name} == {
        f"ablation/bins_{model}" for model in ("resnet", "vgg", "mobilenet", "vit", "bert", "gpt")
    }
    for name in names:
        runs = expand(load_experiment(name))
        for run in runs:
            method_of(run)
            assert (run.kind, run.steps) == ("ablate", 1000)
            images = run.data.name == "cifar"
            assert not images or (run.data.search_images, run.data.heldout_images) == (1000, 2000)
            assert images or (run.data.search_tokens, run.data.heldout_tokens) == (8192, 16_384)
        assert {run.measure for run in runs} == {
            {"coders": "coders", "bins": "bins"}.get(name[9:].partition("_")[0], "saves")
        }
