"""Kind system: trainings under SmaQ, SAMO and two-bit gradients, beside the same trainings without."""

from __future__ import annotations

import csv
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from dynaquant_core.errors import ConfigError, DynaQuantError, ExperimentError
from dynaquant_core.experiments import (
    Progress,
    Results,
    events,
    run_experiment,
    seed_rows,
    shipped_configs,
    spread_lines,
    summary,
)
from dynaquant_core.experiments.baseline import Baseline
from dynaquant_core.experiments.config import load_experiment, validate
from dynaquant_core.experiments.config.grid import expand
from dynaquant_core.experiments.job import Job
from dynaquant_core.experiments.report.systems import draw_systems, role_rows, state_rows, system_rows
from dynaquant_core.experiments.systems.entry import system_entry
from dynaquant_core.experiments.systems.run import SystemRun
from dynaquant_core.experiments.trainer import Trainer
from tests.experiments.conftest import enter_workplace, tiny_settings
from tests.experiments.states import cut_short

STEPS, AFTER = 24, 8
SAMO = {"name": "samo", "sparsity": 0.8, "after": AFTER}
PUBLISHED = {"name": "smaq", "format": {"name": "smaq", "keep_zeros": False}, "feature_maps": "inline"}

SYSTEMS: list[dict[str, Any]] = [
    SAMO,
    SAMO | {"dtype": "bfloat16"},
    {"name": "pruned", "sparsity": 0.8, "after": AFTER},
    {"name": "smaq"},
    {"name": "smaq", "format": "bf16", "feature_maps": "inline", "gradient_maps": False},
    {"name": "two_bit", "threshold": None},
    {"name": "two_bit", "threshold": 0.001},
    {"name": "two_bit", "threshold": 0.001, "warmup": STEPS},
]


def settings(**changes: Any) -> dict[str, Any]:
    """A tiny GPT under a system."""
    own = {key: value for key, value in tiny_settings().items() if key in {"model", "data", "evaluate"}}
    fixed = {"name": "tiny", "kind": "system", "steps": STEPS, "checkpoint_every": 8}
    optimizer = {"name": "adamw", "lr": 0.003, "schedule": "cosine", "clip": 1.0}
    return {**own, **fixed, "optimizer": optimizer, "system": {"name": "smaq"}} | changes


def ran(folder: Path, grid: dict[str, Any], **changes: Any) -> Results:
    """What comes of a grid, in processes of its own."""
    path = folder / "tiny.yaml"
    path.write_text(yaml.safe_dump(settings(grid=grid, **changes)), encoding="utf-8")
    return run_experiment(path, ["output=out"])


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Results:
    """Every system once, and SAMO with a second seed."""
    with pytest.MonkeyPatch.context() as patch:
        place = enter_workplace(tmp_path_factory.mktemp("systems"), patch)
        found = ran(place, {"system": SYSTEMS})
        return Results((place / found.path).absolute(), found.data)


@pytest.fixture
def runs(results: Results) -> list[dict[str, Any]]:
    """The entries, in the order of `SYSTEMS`."""
    entries: list[dict[str, Any]] = results.data["runs"]
    return entries


def test_every_run_stands_beside_the_same_training_without_a_system(runs: list[dict[str, Any]]) -> None:
    assert [run["method"] for run in runs] == [system["name"] for system in SYSTEMS]
    assert len({run["final"]["baseline"] for run in runs[:5]}) == 1
    assert not any(run["final"]["same_bits"] for run in runs[:5])
    for run in runs:
        assert run["system"]["diverged_after"] is None
        assert [entry["step"] for entry in run["system"]["measured"]] == [8, 16, 24]
        assert run["curves"][0][-1][0] == STEPS
        assert run["final"]["value"] == run["system"]["measured"][-1]["heldout"]


def test_samo_in_float32_ends_in_the_bits_of_masked_dense_training(runs: list[dict[str, Any]]) -> None:
    ours, half, masked = runs[:3]
    assert ours["final"]["weights_digest"] == masked["final"]["weights_digest"]
    assert ours["curves"][0] == masked["curves"][0]
    assert half["final"]["weights_digest"] != ours["final"]["weights_digest"]
    # dense until it is pruned, with the clipping of the plain training
    assert ours["curves"][0][:AFTER] == [point for point in ours["baseline_curve"] if point[0] <= AFTER]
    assert ours["curves"][0][AFTER:] != [point for point in ours["baseline_curve"] if point[0] > AFTER]


def test_samo_in_float16_trains_under_its_loss_scale(workplace: Path) -> None:
    half = SAMO | {"dtype": "float16"}
    systems = [half | {"loss_scale": 1024.0}, half | {"loss_scale": 2.0**40}, SAMO]
    good, overflown, full = ran(workplace, {"system": systems}).data["runs"]
    assert good["system"]["skipped"] == full["system"]["skipped"] == 0
    assert good["system"]["smaller"] > full["system"]["smaller"]
    assert good["final"]["weights_digest"] != full["final"]["weights_digest"]
    assert good["final"]["value"] == pytest.approx(full["final"]["value"], rel=0.01)
    assert overflown["system"]["skipped"] == STEPS - AFTER, "a step that overflows is left out, and told"


def test_samo_says_what_it_holds(runs: list[dict[str, Any]]) -> None:
    for run in runs[:2]:
        found = run["system"]
        assert found["measured_over_formula"] == pytest.approx(1.0, abs=0.02)
        assert found["saved"] == pytest.approx(1 - 1 / found["smaller"])
        assert 0.2 < found["kept"] < 0.6  # embeddings and vectors stay
    assert runs[1]["system"]["smaller"] > runs[0]["system"]["smaller"] > 1
    assert runs[2]["system"]["kept"] == pytest.approx(runs[0]["system"]["kept"])
    assert [row["saved"] for row in state_rows(runs)] == [f"{run['system']['saved']:.1%}" for run in runs[:2]]


def test_smaq_says_what_it_coded(runs: list[dict[str, Any]]) -> None:
    ours, cast = runs[3]["system"], runs[4]["system"]
    assert ours["smaller"] > 4
    assert set(ours["roles"]) == {"saved", "gradient map", "gradient", "weight", "state"}
    assert 0 < ours["peak_maps_bytes"] < ours["peak_maps_raw_bytes"] / 3
    assert cast["smaller"] == pytest.approx(2.0)
    assert set(cast["roles"]) == {"map", "gradient", "weight", "state"}
    assert cast["peak_maps_bytes"] is None
    assert [row["weight"] for row in role_rows(runs)][1] == "2.0x"


def test_two_bits_hand_in_a_sixteenth_and_a_warm_up_is_dense(runs: list[dict[str, Any]]) -> None:
    dense, packed, warm = runs[5:]
    assert dense["system"]["smaller"] == 1
    assert 15 < packed["system"]["smaller"] <= 16
    assert warm["system"]["smaller"] == 1
    assert warm["final"]["weights_digest"] == dense["final"]["weights_digest"]
    assert packed["final"]["weights_digest"] != dense["final"]["weights_digest"]


def test_two_bits_are_measured_against_as_many_replicas(results: Results, runs: list[dict[str, Any]]) -> None:
    """One replica alone would have seen half of the data."""
    dense, packed, warm = runs[5:]
    for run in (dense, warm):
        assert (run["final"]["relative_degradation"], run["final"]["same_bits"]) == (0, True)
        assert run["final"]["train_relative_degradation"] == pytest.approx(0)
    assert packed["final"]["baseline"] == dense["final"]["value"] != runs[0]["final"]["baseline"]
    assert packed["final"]["same_bits"] is False
    seen = [line.partition(",")[2].partition(",")[0].strip() for line in spread_lines(runs)]
    assert "2 replicas" in seen, "their spread is not that of the others"
    figure = pytest.importorskip("matplotlib.figure", reason="plots need the extra plots").Figure()
    draw_systems(figure, runs)
    named = [text.get_text() for text in figure.legends[0].get_texts()]
    assert named == ["without a system", "without a system, 2 replicas"]


def test_the_report_has_a_section_of_its_own(results: Results, runs: list[dict[str, Any]]) -> None:
    page = (results.path.parent / "report.html").read_text(encoding="utf-8")
    assert "<h2>Systems</h2>" in page
    assert "two_bit threshold=None" in page
    assert "data:image/png" in page
    assert (results.path.parent / "plots" / "systems.png").exists()
    with (results.path.parent / "results.csv").open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [float(row["smaller"]) for row in rows if row["smaller"]] == [
        run["system"]["smaller"] for run in runs if run["system"]["smaller"]
    ]
    assert rows[0]["final_value"]
    assert not rows[0]["checkpoints"]
    assert len(system_rows(runs)) == len(SYSTEMS)
    assert [row["system"] for row in summary(results)][5] == "two_bit threshold=None"


def test_the_plot_says_the_numbers_of_its_marks(runs: list[dict[str, Any]]) -> None:
    figure = pytest.importorskip("matplotlib.figure", reason="plots need the extra plots").Figure()
    draw_systems(figure, runs)
    numbers = [text.get_text() for text in figure.axes[0].texts]
    assert numbers == [f"{run['final']['value']:.4g}" for run in runs]


def test_rows_are_added_and_seeds_are_put_together(workplace: Path) -> None:
    first = ran(workplace, {"system": [SAMO]})
    stamp = (workplace / "out" / "run-0" / "events.jsonl").stat().st_mtime_ns
    found = ran(workplace, {"system": [SAMO]}, seeds=[0, 1])
    assert found.data["runs"][0] == first.data["runs"][0]
    assert (workplace / "out" / "run-0" / "events.jsonl").stat().st_mtime_ns == stamp
    (row,) = system_rows(found.data["runs"])
    assert row["seeds"] == "2"
    assert "±" in row["final"]
    assert seed_rows(found.data["runs"]) == [row]


def test_a_training_that_diverges_at_its_last_step_has_diverged() -> None:
    experiment = validate(settings(), "tiny")
    ended = {"step": STEPS, "weights_digest": "aa", "parameters": 3, "facts": {}}
    diary = [
        {"event": "start", "restored": 0},
        {"event": "loss", "step": STEPS - 1, "loss": 3.0, "seconds": 1.0},
        {"event": "final", "value": None, **ended},
    ]
    baseline = Baseline(1.0, {}, [])
    assert system_entry(experiment, diary, baseline)["system"]["diverged_after"] == STEPS
    diary[-1]["value"] = 2.0
    assert system_entry(experiment, diary, baseline)["system"]["diverged_after"] is None


def test_means_over_seeds_leave_out_those_that_diverged() -> None:
    def ended(seed: int, value: float | None, smaller: float, seconds: float) -> dict[str, Any]:
        facts = {"weights_digest": "aa", "parameters": 3, "seconds": seconds, "facts": {"smaller": smaller}}
        diary = [{"event": "start", "restored": 0}, {"event": "final", "step": 4, "value": value, **facts}]
        return system_entry(validate(settings(seed=seed), "tiny"), diary, Baseline(1.0 + seed, {}, []))

    runs = [ended(0, 1.5, 4.0, 8.0), ended(1, None, 100.0, 800.0)]
    (row,) = system_rows(runs)
    told = {
        title: row[title] for title in ("seeds", "final", "without", "smaller", "seconds a step", "diverged")
    }
    wanted = ["2", "1.5000", "1.0000", "4.00x", "2.0000", "1"]
    assert told == dict(zip(told, wanted, strict=True))
    (row,) = system_rows(runs[1:])
    assert (row["final"], row["smaller"], row["diverged"]) == ("-", "100.00x", "1")


def test_a_training_that_diverges_is_a_result(workplace: Path) -> None:
    found = ran(workplace, {"system": [PUBLISHED, {"name": "smaq"}]}, optimizer={"name": "adamw", "lr": 0.05})
    diverged, other = found.data["runs"]
    assert diverged["system"]["diverged_after"] < STEPS
    assert diverged["final"]["value"] is None
    assert diverged["final"]["relative_degradation"] is None
    assert other["final"]["value"] is not None
    assert summary(found)[0]["final loss"].startswith("none: diverged after")
    assert [row["diverged"] for row in system_rows(found.data["runs"])] == ["1", "-"]
    assert "diverged" in (workplace / "out" / "report.html").read_text(encoding="utf-8")


def test_a_training_that_diverges_between_two_points_of_its_curve_tells_its_time(workplace: Path) -> None:
    """Of a long run few losses are kept; the steps between them took time all the same."""
    long = settings(system=PUBLISHED, optimizer={"name": "adamw", "lr": 0.05}, steps=40_000)
    job = Job(workplace, expand(validate(long, "tiny"))[0], saves=True)
    SystemRun(job).run()
    entry = system_entry(job.experiment, events.read(job.diary), Baseline(1.0, {}, []))
    assert entry["curves"] == [[]]
    assert 0 < entry["system"]["diverged_after"] < 100
    assert entry["training_seconds"] > 0
    assert entry["system"]["seconds_a_step"] > 0


def test_a_system_may_start_from_weights(workplace: Path) -> None:
    trainer = Trainer(expand(validate(settings(seed=5), "tiny"))[0])
    torch.save(trainer.model.state_dict(), workplace / "start.pt")
    started = ran(workplace, {"system": [SAMO]}, pretrained={"source": "start.pt"})
    (run,) = started.data["runs"]
    plain = Trainer(expand(validate(settings(), "tiny"))[0])
    plain.model.load_state_dict(trainer.model.state_dict())
    assert run["curves"][0][0][1] == pytest.approx(plain.advance(), rel=1e-5)
    assert run["baseline_curve"][0][1] == run["curves"][0][0][1]
    cut_short(workplace / "out" / "run-0" / "events.jsonl")
    shutil.move("start.pt", "../data/start.pt")  # the same bytes, found under the data root now
    (again,) = ran(workplace, {"system": [SAMO]}, pretrained={"source": "start.pt"}).data["runs"]
    assert again["final"] == run["final"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"system": None}, r"kind: system needs the section system, as system: \{name: smaq\}"),
        ({"system": {"name": "smack"}}, r"system: there is no 'smack'; known: 'smaq', 'samo', 'pruned'"),
        (
            {"system": {"name": "samo", "sparsty": 0.5}},
            r"system: unknown key 'sparsty'; did you mean 'sparsity'",
        ),
        ({"system": {"name": "samo", "sparsity": 1.0}}, r"system.sparsity: expected less than 1"),
        ({"system": {"name": "samo", "after": STEPS}}, r"system.after: the run of 24 steps is over"),
        (
            {"system": {"name": "samo", "dtype": "float64"}},
            r"system.dtype: expected 'float32', 'bfloat16' or 'float16', got 'float64'",
        ),
        ({"system": {"name": "samo", "dtype": "float16"}}, r"system: dtype: float16 needs a loss_scale"),
        (
            {"system": {"name": "samo", "dtype": "bfloat16", "loss_scale": 8.0}},
            r"system: loss_scale belongs to dtype: float16, not bfloat16",
        ),
        (
            {"system": {"name": "samo", "dtype": "float16", "loss_scale": 0.0}},
            r"system.loss_scale: expected greater than or equal to",
        ),
        ({"system": {"name": "smaq", "format": 6}}, r"system.format: expected a format's name or a mapping"),
        ({"system": {"name": "two_bit", "threshold": 0.0}}, r"system.threshold"),
        (
            {"system": {"name": "two_bit", "threshold": None, "warmup": 4}},
            r"threshold: null is dense throughout",
        ),
        (
            {"system": {"name": "two_bit", "replicas": 1}},
            r"system.replicas: expected greater than or equal to 2",
        ),
        ({"threshold": 0.05}, r"kind: system stores no checkpoints: threshold would change nothing"),
        ({"method": "lc", "failures": 2}, r"method and failures would change nothing; leave it out"),
        ({"kind": "train"}, r"system belongs to kind: system, not train"),
        (
            {"pretrained": {"steps": 4}},
            r"kind: system starts from a file of weights: of pretrained give source",
        ),
    ],
)
def test_a_bad_section_is_one_line(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        validate(settings(**changes), "tiny")


@pytest.mark.parametrize(
    ("system", "message"),
    [
        ({"name": "smaq", "format": "s2fp9"}, r"there is no format 's2fp9'; did you mean 's2fp8'"),
        ({"name": "smaq", "format": {"name": "smaq", "limits": 3}}, r"limit"),
        ({"name": "two_bit", "threshold": {"nowhere": 0.1}}, r"no pattern of threshold covers parameter"),
        ({"name": "samo", "dense": ["nowhere"]}, r"nowhere"),
    ],
)
def test_what_does_not_fit_the_model_is_one_line(
    workplace: Path, system: dict[str, Any], message: str
) -> None:
    with pytest.raises(DynaQuantError, match=message):
        ran(workplace, {"system": [system]})


def test_missing_weights_are_refused_before_anything_is_trained(workplace: Path) -> None:
    said: list[Progress] = []
    path = workplace / "tiny.yaml"
    path.write_text(yaml.safe_dump(settings(pretrained={"source": "gone.pt"})), encoding="utf-8")
    with pytest.raises(ExperimentError, match=r"gone\.pt"):
        run_experiment(path, ["output=out"], said.append)
    assert not said


@pytest.mark.parametrize("name", sorted(name for name in shipped_configs() if name.startswith("systems/")))
def test_shipped_systems_are_whole_grids(name: str) -> None:
    found = expand(load_experiment(name))
    assert len({run.model_dump_json() for run in found}) == len(found) > 1
