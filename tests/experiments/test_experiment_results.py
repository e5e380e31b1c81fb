"""results.json from a diary: totals, restores, rework, overhead; and what people read of it."""

from __future__ import annotations

import base64
import builtins
import csv
import json
import re
from pathlib import Path
from typing import Any

import pytest

from dynaquant_core.errors import DependencyError
from dynaquant_core.experiments.baseline import Baseline
from dynaquant_core.experiments.config import validate
from dynaquant_core.experiments.report import seed_rows, summary, write_report
from dynaquant_core.experiments.report.comparison import comparison_rows
from dynaquant_core.experiments.report.overhead import overhead_rows
from dynaquant_core.experiments.report.page import page
from dynaquant_core.experiments.report.palette import plain_numbers
from dynaquant_core.experiments.report.plots import PLOTS, draw
from dynaquant_core.experiments.report.price import draw_price
from dynaquant_core.experiments.report.spreadsheet import table_text
from dynaquant_core.experiments.report.tradeoff import draw_tradeoff
from dynaquant_core.experiments.restores import lost_training
from dynaquant_core.experiments.results import Results, run_entry

BASELINE = Baseline(
    final=2.0,
    parts={10: 3.0, 20: 2.5, 30: 2.2, 40: 2.0},
    curve=[(10, 3.0), (40, 2.0)],
    train=2.0,
    digest="aa",
)


def checkpoint(step: int, weight: int, moment: int, met: bool = True) -> dict[str, Any]:
    parts = {
        "weight": {"raw_bytes": 1000, "stored_bytes": weight},
        "moment": {"raw_bytes": 2000, "stored_bytes": moment},
        "exact": {"raw_bytes": 10, "stored_bytes": 40},
    }
    return {
        "event": "checkpoint",
        "step": step,
        "kind": "key" if step == 10 else "delta",
        "config": {"bins": 8, "prune": 0.1, "prune_metric": "magnitude"},
        "raw_bytes": 3010,
        "stored_bytes": weight + moment + 40,
        "parts": parts,
        "unchanged": None if step == 10 else 0.5,
        "movement_lost": {"stale": 0.1, "noise": 0.2, "er": None},
        "quality": {"reference": 3.0, "search": 3.01, "heldout": 3.02},
        "degradation": {"search": 0.003, "heldout": 0.004, "heldout_se": 0.001},
        "met": met,
        "evaluations": 3,
        "exhaustive": step == 10,
        "seconds": {
            "held": 0.1,
            "search": 0.3,
            "draft": 0.05,
            "encode": 0.2,
            "commit": 0.01,
            "collector": 0.0,
        },
    }


def diary(*probes: tuple[int, float], final: float = 2.1) -> list[dict[str, Any]]:
    return [
        {"event": "start", "restored": 0},
        {"event": "loss", "step": 10, "loss": 3.0, "seconds": 2.0},
        checkpoint(10, 100, 400),
        {"event": "loss", "step": 15, "loss": 2.8, "seconds": 3.0},
        {"event": "killed", "step": 15},
        {"event": "start", "restored": 10},
        *({"event": "probe", "step": step, "value": value} for step, value in probes),
        {"event": "loss", "step": 20, "loss": 2.5, "seconds": 2.0},
        checkpoint(20, 50, 400, met=False),
        *({"event": "loss", "step": step, "loss": 2.2, "seconds": 3.0} for step in range(31, 41)),
        {"event": "final", "step": 40, "value": final, "weights_digest": "bb", "parameters": 250},
    ]


def entry(tiny: dict[str, Any], events: list[dict[str, Any]], **changes: Any) -> dict[str, Any]:
    return run_entry(validate(tiny | changes, "tiny"), events, BASELINE)


def test_totals_sum_every_checkpoint_and_the_weights_apart(tiny: dict[str, Any]) -> None:
    totals = entry(tiny, diary())["totals"]
    assert totals == {
        "raw_bytes": 6020,
        "stored_bytes": 1030,
        "ratio": 6020 / 1030,
        "weights_ratio": 2000 / 150,
    }


def test_the_final_value_is_compared_with_the_uninterrupted_run(tiny: dict[str, Any]) -> None:
    final = entry(tiny, diary(final=2.1))["final"]
    assert (final["metric"], final["mode"], final["value"], final["baseline"]) == ("loss", "min", 2.1, 2.0)
    assert final["relative_degradation"] == pytest.approx(0.05)
    accuracy = entry(tiny, diary(final=1.9), evaluate={"metric": "accuracy"})["final"]
    assert (accuracy["mode"], accuracy["relative_degradation"]) == ("max", pytest.approx(0.05))


@pytest.mark.parametrize(
    ("probes", "steps"),
    [
        ([(10, 2.9)], 0),  # a restored model may even be better
        ([(10, 3.2), (11, 3.1), (12, 2.99), (13, 3.5)], 2),
        ([(10 + i, 3.5) for i in range(11)], 10),  # never back within one interval
        ([(10, 3.2), (11, 3.1)], None),  # cut short by the next failure
    ],
)
def test_rework_is_counted_to_the_first_probe_that_is_back(
    tiny: dict[str, Any], probes: list[tuple[int, float]], steps: int | None
) -> None:
    (restore,) = entry(tiny, diary(*probes))["restores"]
    assert (restore["failed_step"], restore["restored_step"]) == (15, 10)
    assert restore["rework_steps"] == steps
    assert restore["rework_intervals"] == (None if steps is None else steps / 10)


def test_a_restore_is_charged_with_what_its_checkpoint_did_not_hold(tiny: dict[str, Any]) -> None:
    found = entry(tiny, diary())
    (restore,) = found["restores"]
    assert restore["movement_lost"] == {"stale": 0.1, "noise": 0.2, "er": None}
    assert restore["span"] == 10 / 40  # from the start to the checkpoint at 10, of 40 steps
    assert found["stale_times_interval"] == pytest.approx(0.1 * 10 / 40)


def test_a_second_restore_is_charged_from_the_first_on_with_the_checkpoint_written_last() -> None:
    restores = [
        {"span": 0.25, "movement_lost": {"stale": 0.4}},
        {"span": 0.5, "movement_lost": {"stale": 0.1}},
        {"span": 0.0, "movement_lost": None},  # back to the same checkpoint again: nothing was made since
    ]
    assert lost_training(restores) == pytest.approx(0.15)
    assert lost_training([]) == 0.0
    assert lost_training([{"span": 0.5, "movement_lost": {"stale": None}}]) is None


def test_a_step_saved_again_counts_as_it_was_written_last(tiny: dict[str, Any]) -> None:
    again = checkpoint(20, 50, 400) | {"movement_lost": {"stale": 0.5, "noise": 0.0, "er": None}}
    events = [
        *diary()[:-12],
        checkpoint(20, 50, 400),
        {"event": "start", "restored": 10},
        again,
        {"event": "start", "restored": 20},
        {"event": "final", "step": 40, "value": 2.0, "weights_digest": "bb", "parameters": 250},
    ]
    last = entry(tiny, events)["restores"][-1]
    assert (last["movement_lost"]["stale"], last["span"]) == (0.5, 10 / 40)


def test_training_loss_is_that_of_the_last_interval_as_taken_last(tiny: dict[str, Any]) -> None:
    events = diary()
    events.insert(4, {"event": "loss", "step": 35, "loss": 99.0, "seconds": 3.0})  # of an earlier life
    final = entry(tiny, events)["final"]
    assert final["train_loss"] == pytest.approx(2.2)
    assert final["train_baseline"] == 2.0
    assert final["train_relative_degradation"] == pytest.approx(0.1)
    assert (final["weights_digest"], final["same_bits"]) == ("bb", False)


def test_overhead_is_the_share_of_all_training_time(tiny: dict[str, Any]) -> None:
    found = entry(tiny, diary())
    assert found["training_seconds"] == 6.0  # 3 before the kill, 3 after
    assert found["overhead"]["search"] == pytest.approx(0.6 / 6)
    assert set(found["overhead"]) == {"collector", "held", "search", "draft", "encode", "commit"}


def test_the_summary_counts_all_that_holds_a_training_up(results: Results) -> None:
    results.data["runs"][0]["overhead"] = {"collector": 0.01, "held": 0.02, "search": 0.04, "encode": 9.0}
    (row,) = summary(results)
    assert row["overhead"] == "7.00%"


def test_a_run_entry_has_the_fixed_keys(tiny: dict[str, Any]) -> None:
    found = entry(tiny, diary(), method={"name": "dynaquant", "coder": "paper"})
    fixed = {"kind", "method", "options", "seed", "threshold", "interval_steps", "failures", "restores"}
    assert fixed | {"overhead", "checkpoints", "totals", "final"} <= found.keys()
    assert (found["method"], found["options"]["coder"], found["failures"]) == ("dynaquant", "paper", [15])
    assert "event" not in found["checkpoints"][0]
    json.dumps(found, allow_nan=False)


@pytest.fixture
def results(tmp_path: Path, tiny: dict[str, Any]) -> Results:
    run = entry(tiny, diary((10, 2.9)))
    config = validate(tiny | {"name": "a.b"}, "tiny").as_dict()
    return Results(
        tmp_path / "results.json", {"config": config, "environment": {"cpu": "<x>"}, "runs": [run]}
    )


def test_the_summary_says_what_was_saved_and_what_broke(results: Results) -> None:
    (row,) = summary(results)
    assert (row["ratio"], row["weights ratio"], row["kills"]) == ("5.8x", "13.3x", "1")
    assert row["threshold met"] == "1 of 2"
    assert row["degradation"] == "+5.00%"


def test_the_comparison_shows_what_restores_took_and_what_saving_took(
    results: Results, tiny: dict[str, Any]
) -> None:
    slow, quick = (entry(tiny, diary(*probes)) for probes in ([(10, 3.2), (11, 3.1), (12, 2.9)], [(10, 2.9)]))
    assert slow["training_seconds"] == 6.0
    (row,) = comparison_rows([slow | {"seed": 0}, quick | {"seed": 1}])
    assert (row["rework"], row["overhead"]) == ("0.10 ± 0.14", "13.3% ± 0.0%")  # 2 and 0 of 10; 0.8 of 6 s
    replayed = [run | {"kind": "replay", "restores": [], "failures": []} for run in (slow, quick)]
    (row,) = comparison_rows(replayed)
    assert not {"rework", "overhead", "kills"} & set(row)
    (told,) = csv.DictReader(table_text([slow]).splitlines())
    assert (float(told["restore_rework"]), round(float(told["overhead"]), 4)) == (0.2, 0.1333)
    (told,) = csv.DictReader(table_text(replayed[:1]).splitlines())
    assert (told["restore_rework"], told["overhead"]) == ("", "")


def test_an_interrupted_run_is_counted_and_averaged_apart(results: Results, tiny: dict[str, Any]) -> None:
    undisturbed = [event for event in diary() if event["event"] not in {"killed", "start"}]
    begun = {"event": "start", "restored": 0}
    quiet = entry(tiny, [begun, *undisturbed], seed=0)
    anew = entry(tiny, [begun, begun, *undisturbed], seed=1)
    resumed = entry(tiny, [event for event in diary() if event["event"] != "killed"], seed=2)
    results.data["runs"] = [quiet, anew, resumed]
    assert [row["kills"] for row in summary(results)] == ["0", "0", "0 (+1 unplanned)"]
    assert [(row["kills"], row["seeds"]) for row in seed_rows(results.data["runs"])] == [
        ("0", "2"),
        ("0 (+1 unplanned)", "1"),
    ]
    table = list(csv.DictReader(table_text(results.data["runs"]).splitlines()))
    assert [(row["failures"], row["restores"], row["unplanned"]) for row in table] == [
        ("0", "0", "0"),
        ("0", "1", "0"),
        ("0", "1", "1"),
    ]


@pytest.mark.parametrize(("metric", "said"), [("loss", True), ("accuracy", False)])
def test_the_law_is_told_of_a_loss_only(results: Results, metric: str, said: bool) -> None:
    figure = pytest.importorskip("matplotlib.figure", reason="plots need the extra plots").Figure()
    results.data["runs"][0]["final"]["metric"] = metric
    text = page(results, [{}])
    assert "The price of a restore" in text
    assert ("loss grows by about 10%" in text) is said
    draw_price(figure, results.data["runs"])
    drawn = [line.get_label() for line in figure.axes[0].lines]
    assert ("10% a unit" in drawn) is said


def test_the_page_needs_no_other_file(results: Results) -> None:
    pytest.importorskip("matplotlib", reason="plots need the extra plots")
    write_report(results)
    text = (results.path.parent / "report.html").read_text(encoding="utf-8")
    images = re.findall(r'src="data:image/png;base64,([^"]+)"', text)
    assert len(images) == len(PLOTS) + 2  # and of restores: their price, the rework
    assert all(base64.b64decode(image).startswith(b"\x89PNG") for image in images)
    assert len(re.findall(r"(?:src|href)=", text)) == len(images)
    assert "&lt;x&gt;" in text
    written = sorted(path.name for path in (results.path.parent / "plots").iterdir())
    assert written == sorted(["price.png", "recovery.png", *(f"run-0-{name}.png" for name in PLOTS)])
    assert "The price of a restore" in text


def test_runs_of_other_metrics_stand_under_their_own_titles_on_the_page(results: Results) -> None:
    (run,) = results.data["runs"]
    final = {**run["final"], "metric": "accuracy", "value": 0.75, "baseline": 0.5}
    text = page(Results(results.path, {**results.data, "runs": [run, {**run, "final": final}]}), [{}, {}])
    head, *rows = re.findall(r"<tr>(.*?)</tr>", text)[:3]
    titles = re.findall(r"<th>(.*?)</th>", head)
    loss, accuracy = (dict(zip(titles, re.findall(r"<td>(.*?)</td>", row), strict=True)) for row in rows)
    assert (loss["final loss"], loss["final accuracy"]) == ("2.1000", "-")
    assert (accuracy["final loss"], accuracy["final accuracy"]) == ("-", "0.7500")
    assert accuracy["uninterrupted"] == "0.5000"


def test_the_page_of_several_models_compares_them_beside_what_was_published(results: Results) -> None:
    pytest.importorskip("matplotlib", reason="plots need the extra plots")
    (run,) = results.data["runs"]
    other = {**run, "model": "resnet", "parameters": 304_810, "method": "qd", "options": {}}
    results.data["runs"] += [other]
    write_report(results)
    text = (results.path.parent / "report.html").read_text(encoding="utf-8")
    assert {"tradeoff.png", "history.png"} <= {p.name for p in (results.path.parent / "plots").iterdir()}
    assert "Comparison" in text
    assert "<td>resnet 0.3M</td>" in text
    assert "of other and far larger models" in text
    assert "<td>ResNet-152</td><td>11.8x</td>" in text  # QD+, as published
    assert [row["model"] for row in summary(results)][-1] == "resnet 0.3M"


@pytest.mark.parametrize(
    ("more", "up"),
    [
        ({}, 5.0),  # it was restored once
        ({"kind": "transfer", "restores": []}, 5.0),
        ({"kind": "ablate", "of": "transfer", "restores": []}, 5.0),
        ({"kind": "replay", "restores": []}, 0.3),  # of its checkpoints
    ],
)
def test_the_tradeoff_shows_what_going_on_from_files_cost(
    results: Results, more: dict[str, Any], up: float
) -> None:
    figure = pytest.importorskip("matplotlib.figure", reason="plots need the extra plots").Figure()
    (run,) = results.data["runs"]
    draw_tradeoff(figure, [run | more])
    assert figure.axes[0].lines[0].get_xydata()[0] == pytest.approx([13.33, up], abs=0.01)


def test_the_tradeoff_has_a_row_for_the_whole_state_where_moments_are_kept_in_several_ways(
    results: Results,
) -> None:
    figure = pytest.importorskip("matplotlib.figure", reason="plots need the extra plots").Figure()
    (run,) = results.data["runs"]
    draw_tradeoff(figure, [run, run | {"moments": "compact"}])
    weights, state = figure.axes
    assert state.get_xlabel() == "raw / stored (state)"
    assert weights.lines[0].get_xydata()[0][0] == pytest.approx(13.33, abs=0.01)
    assert state.lines[0].get_xydata()[0][0] == pytest.approx(6000 / 950)


@pytest.mark.parametrize("ends", [(8, 12), (30, 80), (5, 400)])
def test_a_logarithmic_axis_has_numbers_to_read_it_by(ends: tuple[int, int]) -> None:
    figure = pytest.importorskip("matplotlib.figure", reason="plots need the extra plots").Figure()
    axes = figure.subplots()
    axes.plot(ends, (0, 1))
    axes.set_xscale("log")
    plain_numbers(axes.xaxis)
    low, high = axes.get_xlim()
    shown = [float(text) for at, text in told(axes.xaxis) if low <= at <= high]
    assert len(set(shown)) >= 3


def told(axis: Any) -> list[tuple[float, str]]:
    """Where an axis has numbers, and which."""
    places = axis.get_majorticklocs()
    return list(zip(places, axis.get_major_formatter().format_ticks(places), strict=True))


def test_a_stage_that_would_hold_up_a_large_training_is_named(results: Results) -> None:
    (run,) = results.data["runs"]
    seconds = {"collector": 0.0, "held": 1e-9 * run["parameters"], "search": 1e-7 * run["parameters"]}
    entries = [{**entry, "seconds": seconds} for entry in run["checkpoints"]]
    (row,) = overhead_rows([{**run, "checkpoints": entries}])
    assert (row["335M, 30 min: without search"], row["all "]) == ("0.02%", "1.88%")
    assert row["over 0.5%"] == "search"


def test_without_a_restore_there_is_no_price(results: Results) -> None:
    pytest.importorskip("matplotlib", reason="plots need the extra plots")
    results.data["runs"][0] |= {"restores": [], "failures": [], "stale_times_interval": 0.0}
    write_report(results)
    assert "The price of a restore" not in (results.path.parent / "report.html").read_text(encoding="utf-8")
    assert not (results.path.parent / "plots" / "price.png").exists()


def test_a_run_without_failures_or_configurations_is_drawn_too(tiny: dict[str, Any]) -> None:
    pytest.importorskip("matplotlib", reason="plots need the extra plots")
    quiet = [event for event in diary() if event["event"] != "killed"][4:]
    exact = [event | {"config": None} if event["event"] == "checkpoint" else event for event in quiet]
    assert set(draw(entry(tiny, exact))) == set(PLOTS)


def test_without_matplotlib_the_page_is_written_and_the_error_says_what_to_install(
    results: Results, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = builtins.__import__

    def refuse(name: str, *rest: Any) -> Any:
        if name.startswith("matplotlib"):
            raise ImportError(name)
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", refuse)
    with pytest.raises(DependencyError, match=r"pip install 'dynaquant\[plots\]'"):
        write_report(results)
    assert "<table>" in (results.path.parent / "report.html").read_text(encoding="utf-8")
