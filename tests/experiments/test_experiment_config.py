"""YAML in, a validated experiment out: every mistake is named where it is."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, get_args

import pytest
import yaml

from dynaquant_core.errors import ConfigError
from dynaquant_core.experiments.config import Experiment, expand, load_experiment, shipped_configs, validate
from dynaquant_core.experiments.kinds.registry import KINDS
from dynaquant_core.methods.registry import DEFAULT_METHOD


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("stesp=3", r"unknown key 'stesp'; did you mean 'steps'\?"),
        ("model.layer=3", r"model: unknown key 'layer'; did you mean 'layers'\?"),
        ("model.name=gpt9", r"model: there is no 'gpt9'; known: 'char_gpt', .*'resnet'"),
        ("model.heads=5", r"model: width 32 is not a multiple of heads 5"),
        ("model={name: resnet, widths: [8, 8], depths: [1]}", r"model: 1 depths for 2 widths"),
        ("model=3", r"model: expected a mapping"),
        ("model={name: vit, patch: 5}", r"model: patch 5 does not divide the 32 pixels"),
        ("model={name: vit, width: 30, heads: 4}", r"model: width 30 is not a multiple of heads 4"),
        ("restores=magic", r"restores: expected 'kill' or 'swap', got 'magic'"),
        ("grid=[{threshold: [0.1]}, {threshold: 0.1}]", r"grid: 'threshold' needs a list of values"),
        ("grid=[]", r"grid: expected a mapping from dotted keys"),
        ("grid={}", r"tiny.yaml: grid: expected a mapping from dotted keys .* got {}; .* grid=null"),
        ("grid=[{}]", r"grid: expected a mapping from dotted keys .* got \[{}\]"),
        ("steps='3'", r"steps: expected a valid integer, got '3'"),
        ("seed=true", r"seed: expected a valid integer, got True"),
        ("steps=0", r"steps: expected greater than or equal to 1, got 0"),
        ("data.batch=x", r"data.batch: expected a valid integer, got 'x'"),
        ("threshold=-0.1", r"threshold: expected a share above 0 and below 1, .* got -0.1"),
        ("threshold=.nan", r"threshold: expected a share above 0 and below 1, .* got nan"),
        ("threshold=0", r"threshold: expected a share above 0 and below 1, .* got 0"),
        ("threshold=1.0", r"threshold: expected a share above 0 and below 1, .* got 1"),
        ("threshold=5", r"threshold: expected a share above 0 and below 1, such as 0.05 for 5%, got 5"),
        ("optimizer.lr=fast", r"optimizer.lr: expected a valid number, got 'fast'"),
        ("optimizer.betas=[0.9]", r"optimizer.betas: list should have at least 2 items"),
        (
            "evaluate.metric=bleu",
            r"evaluate.metric: expected 'loss', 'accuracy' or 'correlation', got 'bleu'",
        ),
        ("method=3", r"method: expected a method's name"),
        ("method={coder: paper}", r"method: expected a method's name or a mapping with its name"),
        ("failures=often", r"failures: expected a number of failures"),
        ("failures={when: [3]}", r"failures: expected a number of failures"),
        ("failures=4", r"failures: 4 kills, .* but 40 steps with one every 10 have 3 such places"),
        ("optimizer.momentum=0.5", r"optimizer: adamw has no momentum, so it would change nothing"),
        ("optimizer={name: sgd, betas: [0.5, 0.9]}", r"optimizer: sgd has no betas"),
        (
            "optimizer={schedule: constant, min_lr: 0.0001}",
            r"optimizer: min_lr: 0.0001 is where a cosine ends, so with schedule: constant it would",
        ),
        ("optimizer={lr: 0.1, min_lr: 0.2}", r"optimizer: min_lr: 0.2 is above lr: 0.1"),
        ("time_limit=5", r"time_limit belongs to kind: ablate"),
        ("failures={at: [5]}", r"failures: step 5 is outside the run"),
        ("checkpoint_every=50", r"checkpoint_every \(50\) is over steps \(40\)"),
        ("data={name: cifar}", r"model 'char_gpt' reads data 'text' or 'bytes', not 'cifar'"),
        ("grid={threshold: 0.1}", r"grid: 'threshold' needs a list of values"),
        ("grid={output: [a, b]}", r"grid: 'output' belongs to the whole experiment"),
        ("name=../up", r"name: "),
        ("grid={'': [1]}", r"grid: '' is no key"),
        ("grid={method.: [1]}", r"grid: 'method.' is no key"),
        ("method={name: lattice, max_noise: .nan}", r"method: expected finite numbers, got nan"),
        ("fix={scale: [{a: .inf}]}", r"fix.scale: expected finite numbers, got inf"),
        ("search={scale: -.inf}", r"search: expected finite numbers, got -inf"),
        (
            "method={name: lattice, max_noise: 2024-02-03}",
            r"method: expected numbers, texts, .* got datetime",
        ),
        ("fix=&a {x: *a}", r"fix.x: lists and mappings are nested more than 32 deep, or hold themselves"),
        ("grid=&a {x: [*a]}", r"grid: lists and mappings are nested"),
        ("optimizer={name: sgd, nesterov: true}", r"optimizer: nesterov: true needs a momentum above 0"),
        ("seed=4294967296", r"seed: expected less than 4294967296"),
        ("seeds=[0, 4294967296]", r"seeds.1: expected less than 4294967296"),
        ("steps=1000000000000000000000000", r"steps: expected less than 9007199254740992"),
        ('output="a\\0b"', r"output: a path must hold no null character"),
        ("output=2024-02-30", r"override 'output': a value is none \(day is out of range for month\)"),
        (
            "threshold=" + 5000 * "9",
            r"override 'threshold': a value is none \(a whole number of 5000 digits\)",
        ),
        ("threshold=0x" + 800 * "f", r"override 'threshold': a value is none \(a whole number of more than"),
        ("exact=" + 3000 * "[" + 3000 * "]", r"override 'exact': nested too deeply"),
        ("method={name: exact, name: lattice}", r"override 'method': key 'name' is there twice"),
        ("kind=trasnfer", r"kind: expected 'train', .* got 'trasnfer'"),
    ],
)
def test_a_bad_value_is_named_with_its_key(tiny_file: Path, override: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_experiment(tiny_file, [override])


def test_overrides_reach_every_level(tiny_file: Path) -> None:
    overrides = ["threshold=0.05", "model.layers=2", "optimizer.lr=1e-4", "method=dynaquant"]
    experiment = load_experiment(tiny_file, [*overrides, "method.coder=paper"])
    assert (experiment.threshold, experiment.model.layers, experiment.optimizer.lr) == (0.05, 2, 1e-4)
    assert experiment.method == {"name": "dynaquant", "coder": "paper"}
    assert load_experiment(tiny_file, ["method.level=3"]).method == {"name": DEFAULT_METHOD, "level": 3}


def test_no_grid_is_left_out_or_said_and_a_runs_own_config_is_read_again(tiny_file: Path) -> None:
    with tiny_file.open("a", encoding="utf-8") as file:
        file.write("grid: {threshold: [0.1, 0.2]}\n")
    one = load_experiment(tiny_file, ["grid=null"])
    assert [run.threshold for run in expand(one)] == [one.threshold]
    written = tiny_file.with_name("config.json")  # a run writes every key, this one as {}
    written.write_text(json.dumps(one.as_dict()), encoding="utf-8")
    assert load_experiment(written) == one
    with pytest.raises(ConfigError, match="grid: expected a mapping"):
        load_experiment(written, ["grid={}"])


def test_a_dotted_key_turns_a_named_method_into_a_mapping(tiny_file: Path) -> None:
    experiment = load_experiment(tiny_file, ["method=other", "method.level=3"])
    assert experiment.method == {"name": "other", "level": 3}


def test_a_key_that_is_there_twice_is_named_with_its_line(tiny_file: Path) -> None:
    with tiny_file.open("a", encoding="utf-8") as file:
        file.write("threshold: 0.1\n'threshold': 0.2\n")
    line = len(tiny_file.read_text(encoding="utf-8").splitlines())
    with pytest.raises(
        ConfigError, match=rf"tiny\.yaml: key 'threshold' is there twice, again in line {line};"
    ):
        load_experiment(tiny_file)


def test_merge_keys_may_be_overridden_and_nested(tiny_file: Path) -> None:
    with tiny_file.open("a", encoding="utf-8") as file:
        file.write(
            "grid:\n- &a {threshold: [0.1], seed: [0, 1]}\n- &b {<<: *a, seed: [2]}\n- {<<: *b, seed: [3]}\n"
        )
    runs = expand(load_experiment(tiny_file))
    assert [(run.threshold, run.seed) for run in runs] == [(0.1, 0), (0.1, 1), (0.1, 2), (0.1, 3)]


def test_seed_and_seeds_are_not_both_taken(tiny_file: Path) -> None:
    with pytest.raises(ConfigError, match="seed or seeds, not both"):
        load_experiment(tiny_file, ["seed=1", "seeds=[0]"])


@pytest.mark.parametrize(
    ("key", "where"), [("grid={failures.at: [[15]]}", "grid"), ("axis={key: steps.x, values: [1]}", "axis")]
)
def test_a_key_that_leads_nowhere_is_named_where_it_stands(tiny_file: Path, key: str, where: str) -> None:
    overrides = [key] if where == "grid" else ["kind=ablate", "failures=0", key]
    with pytest.raises(ConfigError, match=rf"^{where} '.*which has no keys"):
        expand(load_experiment(tiny_file, overrides))


def test_a_limit_of_time_belongs_to_what_has_one(tiny_file: Path) -> None:
    axis = ["kind=ablate", "failures=0", "axis={key: time_limit, values: [1.0, 2.0]}"]
    with pytest.raises(ConfigError, match="time_limit belongs to measure: bins"):
        load_experiment(tiny_file, axis)


def test_moments_are_not_varied_where_a_method_stores_its_own(tiny_file: Path) -> None:
    grid = "grid={method: [lattice, excp, none], moments: [8bit, compact]}"
    runs = expand(load_experiment(tiny_file, [grid]))
    found = [(run.method, run.moments) for run in runs]
    assert found == [("lattice", "8bit"), ("lattice", "compact"), ("excp", "8bit"), ("none", "8bit")]


@pytest.mark.parametrize("override", ["threshold", "=3", ".x=3", "threshold=[", "steps.deep=3"])
def test_an_override_that_is_none_is_refused(tiny_file: Path, override: str) -> None:
    with pytest.raises(ConfigError, match="override"):
        load_experiment(tiny_file, [override])


@pytest.mark.parametrize(
    ("varied", "override", "section"),
    [
        ("grid={threshold: [0.1, 0.2]}", "threshold=0.01", "grid"),
        ("grid=[{method: [lattice]}, {method: [qd], threshold: [0.1]}]", "method.max_noise=3", "grid"),
        ("grid={seed: [0, 1]}", "seeds=[5]", "grid"),
        ("axis={key: optimizer.lr, values: [0.1]}", "optimizer.lr=0.2", "axis"),
    ],
)
def test_an_override_that_no_run_would_notice_is_refused(
    tiny_file: Path, varied: str, override: str, section: str
) -> None:
    kind = ["kind=ablate"] if section == "axis" else []
    with pytest.raises(ConfigError, match=rf"override '{override.partition('=')[0]}': the {section} sets it"):
        load_experiment(tiny_file, [*kind, varied, override])


def test_an_override_beside_a_grid_reaches_the_runs_that_take_it(tiny_file: Path) -> None:
    grid = "grid=[{method.sigma: [0.2, 0.3]}, {threshold: [0.1], failures: [1]}]"
    runs = expand(load_experiment(tiny_file, [grid, "method=dynaquant", "threshold=0.02", "failures=2"]))
    assert [run.method for run in runs] == [
        {"name": "dynaquant", "sigma": 0.2},
        {"name": "dynaquant", "sigma": 0.3},
        "dynaquant",
    ]
    assert [(run.threshold, run.failures) for run in runs] == [(0.02, 2), (0.02, 2), (0.1, 1)]


def test_a_missing_key_is_named(workplace: Path, tiny: dict[str, Any]) -> None:
    del tiny["steps"]
    with pytest.raises(ConfigError, match="steps: this key is required"):
        validate(tiny, "tiny.yaml")


@pytest.mark.parametrize("text", ["a: [", "- 1\n- 2", "", "\x00", "!!python/object:os.system {}"])
def test_a_file_that_is_no_mapping_of_yaml_is_refused(workplace: Path, text: str) -> None:
    path = workplace / "bad.yaml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError, match=r"bad\.yaml"):
        load_experiment(path)


def test_a_name_that_does_not_exist_gets_the_nearest_one(workplace: Path) -> None:
    with pytest.raises(ConfigError, match=r"did you mean 'quickstart'\?"):
        load_experiment("quikstart")


def test_settings_survive_the_way_through_json(tiny: dict[str, Any]) -> None:
    for extra in (
        {},
        {"seeds": [1, 2]},
        {"failures": {"at": [15]}},
        {"grid": {"threshold": [0.1]}},
        {"grid": [{"failures": [1]}]},
    ):
        experiment = validate(tiny | extra, "tiny")
        assert validate(experiment.as_dict(), "again") == experiment


def test_the_grid_is_every_combination_with_every_seed(tiny: dict[str, Any]) -> None:
    grid = {"threshold": [0.05, 0.01], "method.coder": ["auto", "paper"]}
    runs = expand(validate(tiny | {"grid": grid, "seeds": [3, 4]}, "tiny"))
    found = [(run.threshold, run.method["coder"], run.seed) for run in runs]
    assert found == [(t, c, s) for t in (0.05, 0.01) for c in ("auto", "paper") for s in (3, 4)]
    assert all(run.grid == {} and run.seeds is None for run in runs)


def test_the_grid_crosses_methods_failures_and_seeds(tiny: dict[str, Any]) -> None:
    paper = {"name": "dynaquant", "profile": "paper"}
    grid = {"method": ["dynaquant", paper], "failures": [0, {"at": [15, 25]}], "seed": [3, 4]}
    runs = expand(validate(tiny | {"grid": grid}, "tiny"))
    found = [(run.method, run.failures, run.seed) for run in runs]
    assert found == [(m, f, s) for m in ("dynaquant", paper) for f in (0, {"at": [15, 25]}) for s in (3, 4)]


def test_a_list_of_grids_is_one_after_the_other_without_repeats(tiny: dict[str, Any]) -> None:
    grid = [{"method": ["dynaquant", "exact"], "failures": [0, 1]}, {"method": ["exact"], "failures": [1, 2]}]
    runs = expand(validate(tiny | {"grid": grid, "seeds": [0, 1]}, "tiny"))
    found = [(run.method, run.failures) for run in runs if run.seed == 1]
    assert found == [("dynaquant", 0), ("dynaquant", 1), ("exact", 0), ("exact", 1), ("exact", 2)]
    assert len(runs) == 2 * len(found)


@pytest.mark.parametrize(
    "twice", [{"seeds": [0, 1, 0]}, {"grid": {"seed": [0, 1], "threshold": [0.01, 0.01]}}]
)
def test_a_run_that_is_named_twice_is_one_run(tiny: dict[str, Any], twice: dict[str, Any]) -> None:
    assert [run.seed for run in expand(validate(tiny | twice, "tiny"))] == [0, 1]


def test_a_section_and_its_keys_may_be_varied_in_any_order(tiny: dict[str, Any]) -> None:
    sigma, method = {"method.sigma": [0.1, 0.2]}, {"method": ["dynaquant"]}
    for grid in (sigma | method, method | sigma):
        assert [run.method["sigma"] for run in expand(validate(tiny | {"grid": grid}, "tiny"))] == [0.1, 0.2]


def test_seeds_that_no_run_takes_are_refused(tiny: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"grid.seed: .*seeds would change nothing"):
        expand(validate(tiny | {"grid": {"seed": [7]}, "seeds": [0, 1]}, "tiny"))
    some = [{"threshold": [0.01]}, {"threshold": [0.05], "seed": [7]}]
    assert [run.seed for run in expand(validate(tiny | {"grid": some, "seeds": [0, 1]}, "tiny"))] == [0, 1, 7]


def test_a_bad_point_of_the_grid_is_found_before_anything_runs(tiny: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"grid threshold=much: threshold"):
        expand(validate(tiny | {"grid": {"threshold": [0.05, "much"]}}, "tiny"))


def test_shipped_configs_are_valid_and_keep_their_promises() -> None:
    configs = {name: load_experiment(name) for name in shipped_configs()}
    assert {"quickstart", "gpt_stdlib", "gpt_shakespeare", "resnet_cifar"} <= configs.keys()
    quick = configs["quickstart"]
    assert quick.steps // quick.checkpoint_every >= 10
    assert (quick.failures, quick.threshold, quick.data.source) == (2, 0.01, "stdlib")
    for name in ("gpt_shakespeare", "resnet_cifar"):
        run = configs[name]
        assert (run.steps, run.checkpoint_every, run.failures, run.seeds, run.grid) == (
            2000,
            200,
            0,
            None,
            {},
        )
    assert configs["gpt_shakespeare"].data.search_tokens >= 32_768
    assert (configs["resnet_cifar"].data.search_images, configs["resnet_cifar"].data.heldout_images) == (
        2000,
        5000,
    )


def test_shipped_configs_are_plain_yaml() -> None:
    for name, path in shipped_configs().items():
        assert yaml.safe_load(path.read_text(encoding="utf-8"))["name"] == name.replace("/", "_")


@pytest.mark.parametrize("model", ["gpt", "resnet", "vit"])
@pytest.mark.parametrize(("name", "interval"), [("10", 0.1), ("2", 0.02)])
def test_the_restore_configs_cover_what_they_promise(model: str, name: str, interval: float) -> None:
    runs = expand(load_experiment(f"restore/{model}_{name}"))
    paper = {"name": "dynaquant", "profile": "paper"}
    for method in ("lattice", "dynaquant", paper):
        found = {(run.threshold, run.failures, run.seed) for run in runs if run.method == method}
        assert found == {(t, k, s) for t in (0.01, 0.05) for k in (0, 1, 5, 10) for s in (0, 1, 2)}
    control = {(run.failures, run.seed) for run in runs if run.method == "exact"}
    assert control == {(k, s) for k in (1, 5, 10) for s in (0, 1, 2)}
    assert {(run.restores, run.moments) for run in runs} == {("swap", "exact")}
    assert all(abs(run.checkpoint_every / run.steps - interval) <= 0.1 * interval for run in runs)


def test_every_kind_that_a_file_may_name_is_in_the_table() -> None:
    assert set(KINDS) == set(get_args(Experiment.model_fields["kind"].annotation))


def test_the_order_of_overrides_does_not_matter(tiny_file: Path) -> None:
    for overrides in (["method.coder=paper", "method=dynaquant"], ["method=dynaquant", "method.coder=paper"]):
        assert load_experiment(tiny_file, overrides).method["coder"] == "paper"


def test_every_checkpoint_may_stand_alone(tiny_file: Path) -> None:
    assert load_experiment(tiny_file, ["max_chain=0"]).max_chain == 0


def test_a_tilde_in_an_output_folder_is_the_home_folder(
    tiny_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert load_experiment(tiny_file, ["output=~/out"]).output == str(tmp_path / "out")
    with pytest.raises(ConfigError, match="output: '~nobody-here/out' names a home folder"):
        load_experiment(tiny_file, ["output=~nobody-here/out"])
