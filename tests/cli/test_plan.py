"""plan: figures with their origin, and one line for what cannot be planned."""

from __future__ import annotations

from pathlib import Path

import pytest

from dynaquant_core.experiments.plan import read_figures
from tests.cli.words import Shell


def test_plan_shows_every_method_and_says_where_figures_are_from(shell: Shell) -> None:
    outcome = shell("plan", "--restores", 10, "--interval", "2%", "--params", "124M")
    assert outcome.status == 0, outcome.err
    figures = read_figures()
    text = " ".join(outcome.out.split())
    assert "planned: 10 restores, 50 checkpoints, one every 0.02 of the training" in text
    assert f"measured on {figures[0].model} ({figures[0].parameters:,} parameters" in text
    for word in ("dynaquant profile=paper", "expected cost", "chance", "not heal", "model will differ"):
        assert word in text


def test_plan_as_json_holds_the_figures_themselves(shell: Shell) -> None:
    told = shell("plan", "--restores", 1, "--interval", 0.1, "--threshold", "1%", "--json").json()
    assert (told["restores"], told["interval"]) == (1, 0.1)
    for option in told["options"]:
        assert option["measured"]["threshold"] == 0.01
        assert option["stored"] is None
        low, high = option["cost_range"]
        assert low <= option["cost"] <= high


def test_without_restores_nothing_is_expected_to_be_lost(shell: Shell) -> None:
    told = shell("plan", "--restores", 0, "--interval", 0.1, "--json").json()
    assert {option["cost"] for option in told["options"]} == {0.0}


@pytest.mark.parametrize(
    ("words", "status", "told"),
    [
        (("--restores", "-1", "--interval", "0.1"), 1, "restores must be 0 or more"),
        (("--restores", "1", "--interval", "0"), 1, "between 0 and 1"),
        (("--restores", "1", "--interval", "100%"), 1, "between 0 and 1"),
        (("--restores", "10", "--interval", "10%"), 1, "10 restores need more"),
        (("--restores", "1", "--interval", "10%", "--threshold", "0"), 1, "threshold"),
        (("--restores", "1", "--interval", "10%", "--params", "many"), 1, "many"),
        (("--restores", "1", "--interval", "10%", "--results", "gone.json"), 1, "gone.json"),
        (("--restores", "1", "--interval", "often"), 2, "often"),
        (("--restores", "few", "--interval", "10%"), 2, "--restores"),
        (("--restores", "1"), 2, "--interval"),
    ],
)
def test_what_cannot_be_planned_is_one_line(
    shell: Shell,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    words: tuple[str, ...],
    status: int,
    told: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    outcome = shell("plan", *words)
    assert outcome.status == status
    assert told in outcome.error()
    assert outcome.out == ""
