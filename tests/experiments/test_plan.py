"""What a threshold buys: figures of many runs, and the law of restores."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dynaquant_core.cli.plan import place, row, show_options
from dynaquant_core.errors import ConfigError, ExperimentError
from dynaquant_core.experiments.figures import model_label
from dynaquant_core.experiments.plan import Option, Wish, nearest_options, read_figures, read_prices
from dynaquant_core.experiments.price import LAW, LAW_RANGE, Figure, Price, method_label, prices
from dynaquant_core.experiments.report import spread_lines
from dynaquant_core.experiments.report.price import figure_text, price_rows
from dynaquant_core.methods.registry import resolve_method


def run(seed: int, k: int, *, cost: float = 0.02, stale: float = 0.4, **changes: Any) -> dict[str, Any]:
    """A run of 100 steps with a checkpoint every 10, as results.json has it."""
    lost = {"stale": stale, "noise": 1.0, "er": None}
    restores = [{"restored_step": 10, "movement_lost": lost, "span": 0.1} for _ in range(k)]
    return {
        "kind": "train",
        "method": "dynaquant",
        "options": resolve_method("dynaquant").options(),
        "seed": seed,
        "threshold": 0.01,
        "model": "char_gpt",
        "data": "verse.txt",
        "parameters": 1000,
        "moments": "exact",
        "interval_steps": 10,
        "steps": 100,
        "failures": list(range(k)),
        "restores": restores,
        "stale_times_interval": k * stale * 0.1,
        "checkpoints": [{"movement_lost": {**lost, "stale": stale / 2}}],
        "totals": {"weights_ratio": 40.0 + seed},
        "final": {
            "metric": "loss",
            "baseline": 2.0 + 0.1 * seed,
            "relative_degradation": cost,
            "train_relative_degradation": None,
        },
    } | changes


def results(*runs: dict[str, Any]) -> dict[str, Any]:
    return {"runs": list(runs), "environment": {"device": "cpu", "processor": "a processor"}}


def test_seeds_are_averaged_and_settings_kept_apart() -> None:
    found = prices(
        results(run(0, 0), run(1, 0), run(0, 5, cost=0.01), run(1, 5, cost=0.03), run(0, 5, threshold=0.05))
    )
    assert [(entry.threshold, entry.restores, entry.seeds) for entry in found] == [
        (0.01, 0, [0, 1]),
        (0.01, 5, [0, 1]),
        (0.05, 5, [0]),
    ]
    whole, five, loose = found
    assert five.cost == Figure(0.02, pytest.approx(0.0141421356))
    assert five.ratio == Figure(40.5, pytest.approx(0.70710678))
    assert five.lost is not None
    assert (five.interval, five.lost.mean, five.er, five.train_cost) == (0.1, pytest.approx(0.2), None, None)
    assert whole.stale is not None
    assert five.stale is not None
    assert (whole.stale.mean, five.stale.mean) == (0.2, 0.4), "of all checkpoints, and of those restored from"
    assert five.floor == pytest.approx(0.0707107 / 2.05, rel=1e-5)
    assert loose.cost == Figure(0.02, None)
    assert (five.device, five.method) == ("a processor", "dynaquant")


def test_a_method_is_called_by_what_is_special_about_it() -> None:
    paper = resolve_method({"name": "dynaquant", "profile": "paper"}).options()
    assert method_label({"method": "dynaquant", "options": paper}) == "dynaquant profile=paper"
    assert method_label({"method": "dynaquant", "options": paper | {"sigma": 0.5}}).endswith(
        "paper sigma=0.5"
    )
    assert method_label({"method": "gone", "options": {"a": 1}}) == "gone a=1"


def test_the_table_and_the_sentence_show_the_spread() -> None:
    runs = [run(0, 5, cost=0.01), run(1, 5, cost=0.03), run(0, 1, stale_times_interval=None)]
    first, second = price_rows(prices(results(*runs)))
    assert (first["final cost"], first["weights ratio"]) == ("+2.00% ± 1.41%", "40.5x ± 0.7x")
    assert (first["stale x interval"], first["law"], first["er"]) == ("0.200 ± 0.000", "+2.00%", "-")
    assert (second["stale x interval"], second["law"]) == ("-", "-")
    line = "uninterrupted runs: final loss 2.0500 ± 0.0707 (3.45%) over 2 seeds"
    assert spread_lines(runs) == [line]
    assert "one seed" in spread_lines(runs[:1])[0]
    other = run(0, 1) | {"model": "vit", "parameters": 1_000_000}
    assert [told.partition(",")[0] for told in spread_lines([*runs, other])][1] == "vit 1.0M"
    assert figure_text(None, "{}") == "-"


def test_the_table_names_the_model_where_there_are_several() -> None:
    runs = [run(0, 5), run(0, 5) | {"model": "vit", "parameters": 1_000_000}]
    found = [row["model"] for row in price_rows(prices(results(*runs)))]
    assert found == [model_label(each) for each in runs]
    assert "model" not in price_rows(prices(results(*runs[:1])))[0]


def price(**changes: Any) -> Price:
    """Ten restores of dynaquant at 10% intervals, with a stale of 0.4 and a ratio of 40."""
    return replace(prices(results(run(0, 10)))[0], **changes)


def test_the_nearest_setting_is_taken_for_each_method_and_threshold() -> None:
    table = [
        price(interval=0.1, restores=10),
        price(interval=0.02, restores=10),
        price(interval=0.02, restores=0),
        price(interval=0.1, restores=10, threshold=0.05),
        price(interval=0.1, restores=10, method="other"),
    ]
    found = nearest_options(Wish(8, 0.03), table)
    assert [option.measured for option in found] == [table[1], table[3], table[4]]
    chosen = nearest_options(Wish(8, 0.03, threshold=0.04), table)
    assert [option.measured for option in chosen] == [table[3], table[4]]
    assert nearest_options(Wish(0, 0.02), table)[0].measured is table[2]
    loose = [price(threshold=0.0), price(threshold=0.5, interval=0.02)]
    assert nearest_options(Wish(9, 0.1, threshold=0.1), loose)[0].measured is loose[1]


def test_an_interrupted_run_is_no_figure_of_a_run_without_restores() -> None:
    (once,) = run(0, 1)["restores"]
    interrupted = run(1, 0, cost=0.5) | {"restores": [once]}
    quiet, broken = prices(results(run(0, 0, cost=0.0), interrupted))
    assert (quiet.restores, quiet.unplanned, quiet.seeds, quiet.cost) == (0, 0, [0], Figure(0.0))
    assert (broken.restores, broken.unplanned, broken.seeds, broken.cost) == (1, 1, [1], Figure(0.5))
    assert [row["restores"] for row in price_rows([quiet, broken])] == ["0", "0 (+1 unplanned)"]
    assert row(Option(broken, None, None, None))[2] == "10.0%, k = 0 (+1 unplanned), 1 seed"
    assert nearest_options(Wish(0, 0.1), [broken, quiet])[0].measured is quiet
    (planned,) = prices(results(run(0, 1)))
    assert nearest_options(Wish(1, 0.1), [broken, planned])[0].measured is planned


def test_a_run_that_began_anew_was_not_restored() -> None:
    nothing = {"restored_step": 0, "movement_lost": None, "span": 0.0}
    (entry,) = prices(results(run(0, 0) | {"restores": [nothing]}))
    assert (entry.restores, entry.unplanned, entry.stale) == (0, 0, Figure(0.2))


def test_the_law_says_nothing_of_an_accuracy() -> None:
    final = run(0, 5)["final"] | {"metric": "accuracy"}
    (entry,) = prices(results(run(0, 5, final=final)))
    (row,) = price_rows([entry])
    assert (row["stale x interval"], row["law"], row["final cost"]) == ("0.200", "-", "+2.00%")
    (option,) = nearest_options(Wish(9, 0.1), [entry])
    assert (option.cost, option.cost_range) == (None, None)
    assert nearest_options(Wish(0, 0.1), [entry])[0].cost == 0.0


def test_the_law_is_applied_to_the_training_between_restores() -> None:
    wish = Wish(9, 0.1, parameters=10**6)
    assert wish.lost == pytest.approx(0.85)  # nine tenths, less half an interval
    (option,) = nearest_options(wish, [price()])
    assert option.cost == pytest.approx(LAW * 0.4 * 0.85)
    assert option.cost_range == pytest.approx((LAW_RANGE[0] * 0.34, LAW_RANGE[1] * 0.34))
    assert option.stored == pytest.approx(4e6 * 10 / 40)
    (free,) = nearest_options(Wish(0, 0.1), [price()])
    assert (free.cost, free.stored) == (0.0, None)
    (unknown,) = nearest_options(wish, [price(stale=None)])
    assert unknown.cost is None
    (negative,) = nearest_options(wish, [price(stale=Figure(-0.01))])
    assert negative.cost == 0.0


@pytest.mark.parametrize(
    ("wish", "message"),
    [
        ({"restores": -1}, "restores must be 0 or more, got -1"),
        ({"interval": 0.0}, "between 0 and 1"),
        ({"interval": 1.0}, "between 0 and 1"),
        ({"interval": float("nan")}, "between 0 and 1"),
        ({"interval": 1e-320}, "at least 1e-12"),
        ({"restores": 10, "interval": 0.1}, "10 restores need more than 10 checkpoint intervals"),
        ({"threshold": 0.0}, "threshold must be a share between 0 and 1"),
        ({"threshold": float("inf")}, "threshold must be a share between 0 and 1"),
        ({"threshold": 5.0}, "such as 0.01 or 1%, got 5"),
        ({"parameters": 0}, "params must be 1 or more"),
    ],
)
def test_what_cannot_be_planned_is_refused(wish: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Wish(**{"restores": 1, "interval": 0.1} | wish)


def test_shipped_figures_name_where_they_come_from() -> None:
    figures = read_figures()
    assert figures
    for entry in figures:
        assert entry.model
        assert entry.parameters > 0
        assert entry.device
        assert entry.ratio is not None
        assert 0 < entry.interval < 1
    methods = {entry.method for entry in figures}
    assert {"lattice", "dynaquant", "dynaquant profile=paper"} <= methods


@pytest.mark.parametrize("restores", [0, 10])
def test_each_model_has_a_figure_of_the_default_with_and_without_restores(restores: int) -> None:
    """A plan without restores was answered with a run that had ten, at another interval."""
    wish = Wish(restores, 0.02 if restores else 0.1, 0.01)
    near = {
        option.measured.model
        for option in nearest_options(wish, read_figures())
        if option.measured.method == "lattice" and not option.far
    }
    assert near >= {"resnet", "char_gpt", "bert"} | ({"vit"} if not restores else set())


def test_no_two_rows_of_a_plan_look_alike_and_no_model_has_two_tables(capsys: Any) -> None:
    """Moments were part of what a row is for and not of what it said, and tables were one a spread."""
    found = nearest_options(Wish(3, 0.1, 0.01), read_figures())
    rows = [(place(option.measured), *row(option)[:2]) for option in found]
    assert len(set(rows)) == len(rows)
    show_options(Wish(3, 0.1, 0.01), found)
    titles = [line for line in capsys.readouterr().out.splitlines() if line.startswith("measured on")]
    assert len({title.partition("), ")[0] for title in titles}) == len(titles) >= 4


def test_what_two_devices_measured_is_one_table_of_more_seeds(capsys: Any) -> None:
    (one,) = prices(results(run(0, 1)))
    several = replace(one, device="another", seeds=[0, 1])
    other = replace(one, device="a third", method="qd")
    for figures in ([one, several, other], [other, several, one]):
        found = nearest_options(Wish(1, 0.1), figures)
        assert [(option.measured.method, option.measured.device) for option in found] == [
            (entry.method, entry.device) for entry in figures if entry is not one
        ]
        show_options(Wish(1, 0.1), found)
        (title,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("measured on")]
        assert title.endswith("a third, another")


def test_what_was_measured_far_from_a_plan_is_marked() -> None:
    (entry,) = prices(results(run(0, 1)))
    near, far = (nearest_options(Wish(1, interval), [entry])[0] for interval in (0.1, 0.01))
    assert (near.far, far.far) == (False, True)
    assert row(far)[2] == row(near)[2] + " *"


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"runs": 3}', '{"runs": [{}], "environment": {}}', "\x00"])
def test_a_file_that_holds_no_prices_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "results.json"
    path.write_text(text, encoding="utf-8")
    for read in (read_prices, read_figures):
        with pytest.raises(ExperimentError, match=r"results\.json"):
            read(path)


@pytest.mark.parametrize(
    "edited",
    [
        {"steps": 0},
        {"steps": "many"},
        {"threshold": "tight"},
        {"threshold": -1.0},
        {"totals": {"weights_ratio": 0}},
        {"totals": {"weights_ratio": "large"}},
        {"interval_steps": float("nan")},
        {"parameters": "many"},
        {"failures": 3},
    ],
)
def test_figures_that_no_run_has_are_refused(tmp_path: Path, edited: dict[str, Any]) -> None:
    path = tmp_path / "results.json"
    path.write_text(json.dumps(results(run(0, 5) | edited)), encoding="utf-8")
    with pytest.raises(ExperimentError, match=r"results\.json"):
        read_prices(path)


def test_results_without_checkpoints_have_nothing_to_plan_with(tmp_path: Path) -> None:
    failed = run(0, 0) | {"kind": "rework", "checkpoints": [], "threshold": None}
    path = tmp_path / "results.json"
    path.write_text(json.dumps(results(failed)), encoding="utf-8")
    with pytest.raises(ExperimentError, match="no run of it kept checkpoints"):
        read_prices(path)
    path.write_text(json.dumps(results(failed, run(0, 1))), encoding="utf-8")
    assert [entry.restores for entry in read_prices(path)] == [1]


def test_a_transfer_is_no_training_without_restores(tmp_path: Path) -> None:
    """Its one checkpoint has no interval, and its ratio is that of a model without a base."""
    path = tmp_path / "results.json"
    transfer = run(0, 0) | {"kind": "transfer"}
    path.write_text(json.dumps(results(transfer)), encoding="utf-8")
    with pytest.raises(ExperimentError, match="no run of it kept checkpoints of a training"):
        read_prices(path)
    path.write_text(json.dumps(results(transfer, run(0, 1))), encoding="utf-8")
    assert [entry.restores for entry in read_prices(path)] == [1]


def test_prices_come_back_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "results.json"
    path.write_text(json.dumps(results(run(0, 5))), encoding="utf-8")
    assert read_prices(path) == prices(results(run(0, 5)))
    with pytest.raises(ExperimentError, match="no figures to plan with"):
        nearest_options(Wish(1, 0.1), [])


def test_intervals_of_one_grid_are_told_by_their_column() -> None:
    """The nearest setting to a wish is looked for among methods of one name."""
    rare = run(0, 1, interval_steps=20, varied={"checkpoint_every": 20, "max_chain": 2})
    often = run(0, 1, interval_steps=10, varied={"checkpoint_every": 10, "max_chain": 2})
    found = prices(results(rare, often))
    assert [price.interval for price in found] == [0.2, 0.1]
    assert [price.method for price in found] == ["dynaquant, max_chain 2"] * 2
