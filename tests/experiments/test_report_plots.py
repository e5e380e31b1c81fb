"""What the plots of several runs draw, and what they call it."""

from __future__ import annotations

from typing import Any

import pytest

from dynaquant_core.experiments.report.ablation import axis_rows, draw_axis
from dynaquant_core.experiments.report.buckets import bucket_rows, draw_buckets
from dynaquant_core.experiments.report.history import draw_history
from dynaquant_core.experiments.report.measured import bins_rows
from dynaquant_core.experiments.report.recovery import draw_recovery
from dynaquant_core.experiments.report.rework import draw_rework, rework_rows
from dynaquant_core.experiments.report.systems import draw_systems


@pytest.fixture
def canvas() -> Any:
    """A figure to draw on."""
    return pytest.importorskip("matplotlib.figure", reason="plots need the extra plots").Figure()


def named(**changes: Any) -> dict[str, Any]:
    """What every entry has."""
    return {
        "kind": "train",
        "model": "mlp",
        "parameters": 1000,
        "data": "drawn",
        "steps": 40,
        "interval_steps": 1,
        "seed": 0,
        "method": "lc",
        "options": {},
        "moments": None,
        "threshold": None,
        "overhead": {},
        "checkpoints": [],
        "failures": [],
        "restores": [],
    } | changes


def words(ticks: Any) -> list[str]:
    return [label.get_text() for label in ticks]


# -- rework ----------------------------------------------------------------------------------------------


def failed(back: float = 4.0, share: float = 0.05, **changes: Any) -> dict[str, Any]:
    """A run of kind rework that is back after so many iterations; changes of its section by name."""
    rework = {
        "size": 0.05,
        "repeats": 2,
        "order": "fresh",
        "most": 50,
        "flat": True,
        "given_up": 0,
        "bytes_mean": 1000 * share,
        "share": share,
        "ratio": 1 / share,
        "seconds": {"iteration": 0.001, "save": 0.002},
    }
    section = {name: changes.pop(name) for name in rework if name in changes}
    told = rework | section
    return named(point={"bits": 2}, rework=told | {"iterations": [back] * told["repeats"]}, **changes)


@pytest.mark.parametrize(
    ("change", "label"),
    [
        ({"interval_steps": 5}, "every 5"),
        ({"order": "same"}, "same batches"),
        ({"repeats": 3}, "repeats 3"),
        ({"varied": {"optimizer.lr": 0.1}}, "optimizer.lr 0.1"),
        ({"size": 0.052}, "5.2%"),
    ],
)
def test_runs_that_differ_are_bars_beside_each_other(canvas: Any, change: dict[str, Any], label: str) -> None:
    draw_rework(canvas, [failed(), failed(9.0, **change)])
    left, right = canvas.axes
    bars = left.containers[-1].patches
    assert [bar.get_height() for bar in bars] == [4.0, 9.0]
    assert bars[0].get_x() + bars[0].get_width() <= bars[1].get_x()
    first, second = words(left.get_xticklabels())
    assert first.startswith("mlp\n5%")
    assert label in second.split("\n")
    assert label not in first.split("\n")
    assert words(right.get_legend().get_texts()) == [first.replace("\n", ", "), second.replace("\n", ", ")]


def test_what_all_runs_share_is_in_no_label(canvas: Any) -> None:
    draw_rework(canvas, [failed(), failed(method="topn"), failed(model="mlr", interval_steps=5)])
    assert words(canvas.axes[0].get_xticklabels()) == ["mlp\n5%", "mlr\n5%"]


def test_bytes_and_times_of_rework_are_means_over_seeds(canvas: Any) -> None:
    other = failed(share=0.1, seed=1, seconds={"iteration": 0.003, "save": 0.004})
    (row,) = rework_rows([failed(share=0.05), other])
    assert (row["checkpoint"], row["of the model"], row["ratio"]) == ("75 B", "7.50%", "15.0x")
    assert (row["iteration (ms)"], row["save (ms)"]) == ("2.0", "3.0")
    draw_rework(canvas, [failed(share=0.05), other])
    (bar,) = canvas.axes[1].containers
    assert bar.lines[0].get_xdata().tolist() == [pytest.approx(7.5)]


# -- thresholds ------------------------------------------------------------------------------------------


def test_thresholds_below_a_percent_are_told_apart(canvas: Any) -> None:
    restores = [{"restored_step": 10, "rework_intervals": 0.5}]
    runs = [named(threshold=threshold, restores=restores) for threshold in (0.001, 0.005, 0.07)]
    draw_recovery(canvas, runs)
    assert words(canvas.axes[0].get_xticklabels()) == ["lc 0.1%", "lc 0.5%", "lc 7%"]
    bins = [{"bins": bins, "mark": "", "step": 1} for bins in (8, 16)]
    (row,) = bins_rows(
        [named(threshold=t, bins=[found]) for t, found in zip((0.001, 0.0012), bins, strict=True)]
    )
    assert (row["0.1%"], row["0.12%"]) == ("8.0", "16.0")


def test_bins_of_searches_that_were_held_to_something_else_are_not_averaged() -> None:
    held = [(8, {"protect": 0.0}), (16, {"protect": 0.2})]
    rows = bins_rows(
        [named(threshold=0.01, fix=fix, bins=[{"bins": bins, "mark": "", "step": 1}]) for bins, fix in held]
    )
    found = [(row["method"], row["1%"]) for row in rows]
    assert found == [("lc, protect 0.0", "8.0"), ("lc, protect 0.2", "16.0")]


def test_changes_of_two_settings_are_told_apart() -> None:
    change = {
        "after": 1,
        "iterations": 10,
        "buckets": [{"exponent": -3, "sign": 1, "count": 4, "error": 0.5}],
    }
    runs = [named(buckets=[change], varied={"optimizer.lr": lr}) for lr in (0.1, 0.4)]
    found = [row["model"] for row in bucket_rows(runs)]
    assert found == ["mlp, optimizer.lr 0.1", "mlp, optimizer.lr 0.4"]


# -- settings --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"varied": {"max_chain": 1}}, "lc, max_chain 1"),
        ({"fix": {"bits": 2}}, "lc, bits 2"),
        ({"moments": "compact"}, "lc, moments compact"),
    ],
)
def test_settings_of_one_method_are_told_apart(canvas: Any, change: dict[str, Any], told: str) -> None:
    saved = [{"step": 10, "parts": {"weight": {"raw_bytes": 40, "stored_bytes": 10}}}]
    restores = [{"restored_step": 10, "rework_intervals": 0.5}]
    usual = named(threshold=0.01, restores=restores, checkpoints=saved)
    draw_recovery(canvas, [usual, usual | change, usual | {"seed": 1}])
    assert words(canvas.axes[0].get_xticklabels()) == ["lc 1%", f"{told} 1%"]
    canvas.clear()
    draw_history(canvas, [usual, usual | change, usual | {"seed": 1}])
    first, second = (line for line in canvas.axes[0].get_lines() if len(line.get_xdata()) == len(saved))
    assert (first.get_label(), second.get_label()) == ("lc", told)
    assert first.get_color() != second.get_color()


# -- an axis ---------------------------------------------------------------------------------------------


def varied(value: int, **changes: Any) -> dict[str, Any]:
    """A run of an ablation over ``method.bits``."""
    numbers = {
        "fix": {},
        "search": True,
        "max_chain": 8,
        "totals": {"ratio": 2.0, "stored_bytes": 1, "weights_ratio": 2.0},
        "final": {"metric": "loss", "value": None, "baseline": 1.0, "relative_degradation": None},
        "stale_times_interval": None,
        "training_seconds": 1.0,
    }
    axis = {"axis": {"key": "method.bits", "value": value}, "options": {"bits": value}}
    return named(**(numbers | axis | {"threshold": 0.01} | changes))


def test_an_axis_is_named_and_has_a_line_for_each_setting(canvas: Any) -> None:
    restore = {"restored_step": 10, "movement_lost": None}
    runs = [varied(2), varied(4), varied(2, threshold=0.0104), varied(2, restores=[restore], seed=1)]
    draw_axis(canvas, runs)
    assert {axes.get_xlabel() for axes in canvas.axes} == {"method.bits"}
    told = ["1%, 0 unplanned", "1.04%, 0 unplanned", "1%, 1 unplanned"]
    (legend,) = canvas.legends
    assert words(legend.get_texts()) == told
    assert [row["setting"] for row in axis_rows(runs)] == [*told, told[0]]


# -- systems, buckets ------------------------------------------------------------------------------------


def test_trainings_without_a_system_are_in_the_legend(canvas: Any) -> None:
    final = {"metric": "loss", "value": 1.2, "baseline": 1.0, "relative_degradation": 0.2}
    draw_systems(canvas, [varied(2, final=final), varied(2, seed=1, final=final | {"baseline": 1.1})])
    (legend,) = canvas.legends
    assert words(legend.get_texts()) == ["without a system"]
    (grey,) = legend.get_patches()
    assert grey.get_facecolor() == canvas.axes[0].patches[0].get_facecolor()


def test_buckets_say_which_run_they_are_of(canvas: Any) -> None:
    buckets = [{"exponent": 0, "sign": 1, "count": 1, "error": 0.5}]
    changes = [{"after": 10, "iterations": 3, "buckets": buckets}]
    runs = [named(seed=seed, buckets=changes, varied={"optimizer.lr": 0.1}) for seed in (4, 5)]
    draw_buckets(canvas, runs)
    title = canvas.axes[0].get_title()
    assert "from iteration 10 on" in title
    assert "mlp, optimizer.lr 0.1, seed 4 (the first of 2 runs)" in title
