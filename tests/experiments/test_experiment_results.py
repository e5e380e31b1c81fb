"""results.json from a diary: totals, restores, rework, overhead; and the tables that people read of it."""

from __future__ import annotations

import csv
import json
import math
from typing import Any

import pytest

from dynaquant_core.experiments.figures import figures
from dynaquant_core.experiments.overhead import LARGE, overhead_of
from dynaquant_core.experiments.report import seed_rows, summary, write_report, write_table
from dynaquant_core.experiments.report.comparison import comparison_rows
from dynaquant_core.experiments.report.overhead import overhead_rows
from dynaquant_core.experiments.report.spreadsheet import table_text
from dynaquant_core.experiments.report.table import checkpoint_rows
from dynaquant_core.experiments.restores import lost_training
from dynaquant_core.experiments.results import Results
from tests.experiments.diary_kit import checkpoint, diary, entry


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
    found = entry(tiny, events)
    last = found["restores"][-1]
    assert (last["movement_lost"]["stale"], last["span"]) == (0.5, 10 / 40)
    assert [saved["step"] for saved in found["checkpoints"]] == [10, 20]
    assert found["checkpoints"][-1]["movement_lost"]["stale"] == 0.5
    assert found["overhead"]["search"] == pytest.approx(0.9 / found["training_seconds"])  # of all three


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


@pytest.mark.parametrize("interval", [5, 50, 200])
def test_gradients_are_averaged_over_a_whole_window_in_a_large_training(
    results: Results, interval: int
) -> None:
    """At a second a step: 50 of them before each save, of which an interval here may have fewer."""
    (run,) = results.data["runs"]
    seconds = {"collector": float(min(50, interval)), "held": 1.0, "search": 0.0}
    entries = [{**entry, "seconds": seconds} for entry in run["checkpoints"]]
    found = overhead_of({**run, "interval_steps": interval, "parameters": LARGE, "checkpoints": entries})
    assert found.large == pytest.approx({"collector": 50 / 1800, "held": 1 / 1800, "search": 0.0})


def test_a_checkpoint_whose_metric_is_no_number_is_the_worst(results: Results) -> None:
    (run,) = results.data["runs"]
    spoilt = {"search": None, "heldout": None, "heldout_se": None}
    first, *others = run["checkpoints"]
    run = run | {"checkpoints": [{**first, "degradation": spoilt, "met": False}, *others]}
    numbers = figures(run)
    names = ("degradation_mean", "degradation_max", "heldout_degradation_mean")
    assert [numbers[name] for name in names] == [math.inf] * 3
    (row,) = comparison_rows([run, results.data["runs"][0] | {"seed": 1}])
    assert (row["degradation"], row["worst"], row["seeds"]) == ("+inf%", "+inf%", "2")
    assert [row["search"] for row in checkpoint_rows(run)][:2] == ["+inf%", "+0.30%"]
    pytest.importorskip("matplotlib", reason="plots need the extra plots")
    mixed = Results(results.path, {**results.data, "runs": [run, *results.data["runs"]]})
    write_report(mixed)
    write_table(mixed)
    (table, _) = csv.DictReader(
        (results.path.parent / "results.csv").read_text(encoding="utf-8").splitlines()
    )
    assert table["degradation_max"] == "inf"


def test_an_interrupted_run_is_not_averaged_with_undisturbed_ones(results: Results) -> None:
    (run,) = results.data["runs"]
    assert len(run["restores"]) == 1
    rows = overhead_rows([run, {**run, "failures": []}, run])
    assert [row["method"].partition(",")[2] for row in rows] == ["", " +1 unplanned"]


def test_what_the_collector_took_is_no_training(tiny: dict[str, Any]) -> None:
    """It works inside of the optimizer's step, where training is timed: 2 seconds of 6."""
    told = diary((10, 2.9))
    for event in told:
        if event["event"] == "checkpoint":
            event["seconds"] |= {"collector": 1.0, "search": 3.0}
    run = entry(tiny, told)
    total = run["training_seconds"]
    assert run["overhead"]["collector"] == pytest.approx(2 / (total - 2))
    assert run["overhead"]["search"] == pytest.approx(6 / (total - 2))
    assert overhead_of(run).share == pytest.approx(8.2 / (total - 2))


def test_a_stage_that_would_hold_up_a_large_training_is_named(results: Results) -> None:
    (run,) = results.data["runs"]
    seconds = {"collector": 0.0, "held": 1e-9 * run["parameters"], "search": 1e-7 * run["parameters"]}
    entries = [{**entry, "seconds": seconds} for entry in run["checkpoints"]]
    (row,) = overhead_rows([{**run, "checkpoints": entries}])
    assert (row["335M, 30 min: without search"], row["all "]) == ("0.02%", "1.88%")
    assert row["over 0.5%"] == "search"
