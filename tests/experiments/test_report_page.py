"""The page of an experiment and the plots on it, of a short run that was killed once."""

from __future__ import annotations

import base64
import builtins
import re
from itertools import pairwise
from typing import Any

import pytest

from dynaquant_core.errors import DependencyError
from dynaquant_core.experiments.report import summary, write_report
from dynaquant_core.experiments.report.page import page
from dynaquant_core.experiments.report.palette import plain_numbers
from dynaquant_core.experiments.report.plots import PLOTS, configurations, draw
from dynaquant_core.experiments.report.price import draw_price
from dynaquant_core.experiments.report.tradeoff import draw_tradeoff
from dynaquant_core.experiments.results import Results
from tests.experiments.diary_kit import diary, entry


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


def test_the_price_of_each_model_has_a_row_of_its_own_and_the_legend_covers_none(results: Results) -> None:
    figure = pytest.importorskip("matplotlib.figure", reason="plots need the extra plots").Figure()
    (run,) = results.data["runs"]
    vit = {"model": "vit", "parameters": 1_000_000}
    dearer = run["final"] | {"baseline": 2.2, "relative_degradation": 0.2}
    draw_price(figure, [run, run | vit, run | vit | {"seed": 1, "final": dearer}])
    assert [axes.get_title().partition(":")[0] for axes in figure.axes[::2]] == ["char_gpt 0k", "vit 1.0M"]
    first, second = figure.axes[::2]
    marks = [
        [mark.get_ydata()[0] for mark in axes.lines if mark.get_marker() == "o"] for axes in (first, second)
    ]
    assert marks == [[pytest.approx(5.0)], [pytest.approx(5.0), pytest.approx(20.0)]]
    assert (len(first.patches), len(second.patches)) == (0, 1), "the band of each model's own seeds"
    assert not any(axes.get_legend() for axes in figure.axes)
    assert len(figure.legends) == 1


def test_values_of_a_configuration_do_not_lie_over_one_another(results: Results) -> None:
    pytest.importorskip("matplotlib", reason="plots need the extra plots")
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    (run,) = results.data["runs"]
    names = ("bins", "prune", "protect", "embedding_bins", "other")
    points = [dict.fromkeys(names, value) for value in (4, 6, 8, 12, 16, 32, 48)]
    entries = [run["checkpoints"][0] | {"step": step, "config": point} for step, point in enumerate(points)]
    figure = Figure(figsize=(11, 4), layout="constrained")
    configurations(figure, {**run, "checkpoints": entries})
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    for axes in figure.axes:
        boxes = [label.get_window_extent(canvas.get_renderer()) for label in axes.get_yticklabels()]
        assert len(boxes) == len(points)
        assert all(low.y1 <= high.y0 for low, high in pairwise(boxes))


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


@pytest.mark.parametrize("kind", ["train", "replay"])
def test_only_a_training_was_held_up(results: Results, kind: str) -> None:
    text = page(
        Results(results.path, {**results.data, "runs": [results.data["runs"][0] | {"kind": kind}]}), [{}]
    )
    assert ("<h2>Overhead</h2>" in text) is (kind == "train")


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
    with pytest.raises(DependencyError, match=r"pip install '\.\[plots\]'"):
        write_report(results)
    assert "<table>" in (results.path.parent / "report.html").read_text(encoding="utf-8")
