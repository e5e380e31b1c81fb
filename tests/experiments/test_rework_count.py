"""Counting rework, against a formula and against a loop without any of this; buckets and intervals."""

from __future__ import annotations

import copy
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from dynaquant_core.errors import ExperimentError
from dynaquant_core.experiments import Results, summary
from dynaquant_core.experiments.config import validate
from dynaquant_core.experiments.config.grid import expand
from dynaquant_core.experiments.report import write_report
from dynaquant_core.experiments.report.buckets import bucket_rows
from dynaquant_core.experiments.rework.buckets import bucket_errors, bucket_words
from dynaquant_core.experiments.rework.interval import mean_interval, ratio_interval
from dynaquant_core.experiments.rework.run import count_rework
from dynaquant_core.experiments.trainer import Trainer
from tests.experiments.rework_kit import STEPS, made, settings

# -- the count, by hand ----------------------------------------------------------------------------------


class Quadratic:
    """Looks like a trainer: w goes down w^2 / 2 by gradient descent, so it is w (1 - lr)^n after n steps."""

    def __init__(self, start: float, rate: float) -> None:
        self.w, self.rate, self.data = start, rate, SimpleNamespace(search=[None])

    def quality(self, batches: Any) -> list[float]:
        assert batches is self.data.search
        return [self.w**2 / 2]

    def backward(self) -> float:
        return self.w**2 / 2

    def update(self) -> None:
        self.w -= self.rate * self.w


@given(st.floats(0.01, 0.9), st.floats(0.5, 10.0), st.floats(1.0, 100.0))
def test_rework_is_the_number_of_steps_that_the_formula_says(rate: float, end: float, behind: float) -> None:
    """From ``behind`` times as far away, log(behind) / -log(1 - rate) steps lead back, rounded up."""
    exact = np.log(behind) / -np.log1p(-rate)
    for slack in (1e-9, -1e-9):  # a whole number of steps may end on either side of the target
        if abs(exact - round(exact)) < 1e-6:
            return
        count, back = count_rework(Quadratic(end * behind, rate), end**2 / 2 * (1 + slack), 10_000)  # type: ignore[arg-type]
        assert (count, back) == (int(np.ceil(exact)), True)


def test_a_restore_that_is_no_worse_costs_nothing_and_one_that_never_heals_is_given_up() -> None:
    better, hopeless = Quadratic(1.0, 0.1), Quadratic(2.0, 0.0)
    assert count_rework(better, 0.5, 100) == (0, True)  # type: ignore[arg-type]
    assert count_rework(hopeless, 0.5, 9) == (9, False)  # type: ignore[arg-type]


def test_a_repeat_that_diverges_is_given_up(workplace: Path) -> None:
    """Small batches after a coarse restore may; the other repeats are worth having."""
    trainer = Trainer(expand(validate(settings(optimizer={"name": "sgd", "lr": 1e30}), "x"))[0])
    assert count_rework(trainer, 0.0, 20) == (20, False)
    assert trainer.step < 20
    with pytest.raises(ExperimentError, match=r"training loss is (nan|inf) at step"):
        trainer.advance()


def test_rework_on_real_ratings_equals_a_count_without_any_of_this(workplace: Path) -> None:
    """Own loop over plain tensors: restore, step, measure."""
    (run,) = expand(
        validate(settings(method="topn", rework={"size": 0.1, "repeats": 3, "order": "same"}), "x")
    )
    trainer = Trainer(run)
    states, losses = [], []
    for step in range(STEPS + 1):
        states.append([own.detach().clone() for own in trainer.model.parameters()])
        losses.append(loss_of(states[-1], *trainer.data.search[0]))
        if step < STEPS:
            trainer.advance()
    held, expected = torch.cat([own.reshape(-1) for own in states[0]]), {}
    for step in range(1, STEPS + 1):
        now = torch.cat([own.reshape(-1) for own in states[step]])
        chosen = (now - held).abs().argsort(descending=True)[: int(np.ceil(0.1 * now.numel()))]
        held[chosen] = now[chosen]
        expected[step] = steps_back(trainer, held.clone(), states[0], step, losses[step])
    entry = made(workplace / "own", {name: run.as_dict()[name] for name in ("method", "rework")})
    assert entry["rework"]["iterations"] == [expected[step] for step in entry["rework"]["failed"]]
    assert max(entry["rework"]["iterations"]) > 0


def loss_of(state: list[torch.Tensor], pairs: torch.Tensor, ratings: torch.Tensor) -> float:
    users, items = (own.detach() for own in state)
    return float(((users[pairs[:, 0]] * items[pairs[:, 1]]).sum(1) - ratings).square().mean())


def steps_back(
    trainer: Trainer, vector: torch.Tensor, like: list[torch.Tensor], step: int, target: float
) -> int:
    parts = vector.split([own.numel() for own in like])
    state = [part.reshape(own.shape).requires_grad_() for part, own in zip(parts, like, strict=True)]
    for count in range(500):
        if loss_of(state, *trainer.data.search[0]) <= target:
            return count
        pairs, ratings = trainer.data.batch(0, step + count)
        users, items = state
        loss = ((users[pairs[:, 0]] * items[pairs[:, 1]]).sum(1) - ratings).square().mean()
        slopes = torch.autograd.grad(loss, state)
        state = [
            (own - 8.0 * slope).detach().requires_grad_() for own, slope in zip(state, slopes, strict=True)
        ]
    raise AssertionError("the loss never came back")


# -- buckets ---------------------------------------------------------------------------------------------


class Sum(nn.Module):
    """Its loss on any batch is known: half the squared norm of its one parameter."""

    def __init__(self, values: list[float]) -> None:
        super().__init__()
        self.values = nn.Parameter(torch.tensor(values))


class Measured:
    """A trainer of `Sum`."""

    def __init__(self, values: list[float]) -> None:
        self.model, self.data = Sum(values), SimpleNamespace(search=[None])

    def reader(self) -> nn.Module:
        return Sum(self.model.values.tolist())

    def quality(self, batches: Any, model: Any) -> list[float]:
        return [float(model.values.detach().square().sum() / 2)]


def test_the_error_of_a_bucket_is_what_the_formula_says() -> None:
    before, after = torch.zeros(4), torch.tensor([2.0, 3.0, -1.0, 0.25])
    trainer: Any = Measured([0.0] * 4)
    found = bucket_errors(trainer, {"values": before}, {"values": after})
    whole = 4 + 9 + 1 + 0.0625
    assert [(bucket["exponent"], bucket["sign"], bucket["count"]) for bucket in found] == [
        (1, 1, 2),
        (0, -1, 1),
        (-2, 1, 1),
    ]
    assert [bucket["error"] for bucket in found] == pytest.approx([13 / whole, 1 / whole, 0.0625 / whole])


@given(st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=1))
def test_a_bucket_is_a_sign_and_an_exponent(values: list[float]) -> None:
    change = np.array(values, np.float32)
    words = bucket_words(change)
    signs, exponents = np.signbit(change), np.frexp(change)[1] - 1
    for value, word, sign, exponent in zip(change, words, signs, exponents, strict=True):
        if value == 0:
            assert word == -1
        else:
            assert word == 256 * sign + max(exponent + 127, 0)


def test_buckets_of_real_changes_matter_less_the_smaller_they_are(tmp_path: Path) -> None:
    buckets = {"after": [2], "every": 3, "count": 2}
    run = made(tmp_path / "own", {"rework": None, "buckets": buckets})
    assert [(change["after"], change["iterations"]) for change in run["buckets"]] == [(2, 3), (2, 6)]
    for change in run["buckets"]:
        counts = sum(bucket["count"] for bucket in change["buckets"])
        assert 0.9 * 1120 < counts <= 1120, "few values did not move at all"
        errors = [bucket["error"] for bucket in change["buckets"]]
        assert max(errors[:6]) > 10 * max(errors[-6:])
    results = Results(tmp_path / "results.json", {"config": {"name": "b"}, "environment": {}, "runs": [run]})
    write_report(results)
    assert "<h2>Buckets</h2>" in (tmp_path / "report.html").read_text(encoding="utf-8")
    assert [row["iterations"] for row in bucket_rows([run])] == ["3", "6"]
    assert summary(results)[0]["changes"] == "2"


def test_a_loss_is_that_of_the_batch_norms_own_statistics(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the start before the change, of its end after it; not those of the end of the training."""
    monkeypatch.chdir(tmp_path)
    draw = np.random.default_rng(0)
    pixels = {f"x_{part}": draw.integers(0, 256, (128, 32, 32, 3), np.uint8) for part in ("train", "test")}
    np.savez("pixels.npz", **pixels, y_train=np.arange(128) % 10, y_test=np.arange(128) % 10)  # type: ignore[arg-type]
    cifar = {"name": "cifar", "source": str(tmp_path / "pixels.npz"), "batch": 32, "augment": False}
    changes: dict[str, Any] = {
        "model": {"name": "resnet", "widths": [8], "depths": 1},
        "data": {**cifar, "search_images": 64, "heldout_images": 64},
        "optimizer": {"name": "sgd", "lr": 0.05, "schedule": "constant"},
        "evaluate": {"metric": "loss", "batch": 64},
        "rework": None,
        "buckets": {"after": [0], "every": 4, "count": 2},
    }
    change = made(tmp_path / "own", changes)["buckets"][0]
    trainer = Trainer(expand(validate(settings(**changes), "x"))[0])
    models = [copy.deepcopy(trainer.model)]
    for _ in range(4):
        trainer.advance()
    models += [copy.deepcopy(trainer.model), copy.deepcopy(trainer.model)]
    largest = change["buckets"][0]
    wanted = largest["exponent"] + 127 + 256 * (largest["sign"] < 0)
    with torch.no_grad():
        for start, end, without in zip(*(model.parameters() for model in models), strict=True):
            words = bucket_words((end - start).numpy())
            without.copy_(torch.where(torch.from_numpy(words == wanted), start, end))
    base, reached, moved = (np.mean(trainer.quality(trainer.data.search, model)) for model in models)
    assert largest["error"] == pytest.approx(abs(moved - reached) / abs(reached - base), rel=1e-3)


# -- intervals -------------------------------------------------------------------------------------------


def test_an_interval_holds_the_truth_about_as_often_as_it_says() -> None:
    draw = np.random.default_rng(1)
    hits = 0
    for _ in range(60):
        found = mean_interval(draw.poisson(4.0, 50).tolist())
        assert found is not None
        assert found.low is not None
        assert found.high is not None
        hits += found.low <= 4.0 <= found.high
    assert hits / 60 >= 0.85


def test_a_ratio_of_pairs_is_surer_than_that_of_strangers() -> None:
    draw = np.random.default_rng(2)
    base = draw.uniform(1, 20, 50)
    found = ratio_interval((3 * base + draw.normal(0, 0.1, 50)).tolist(), base.tolist())
    assert found is not None
    assert found.value == pytest.approx(3, rel=0.01)
    assert found.low is not None
    assert found.high is not None
    assert found.high - found.low < 0.05
    assert mean_interval([]) is None
    assert ratio_interval([], []) is None
