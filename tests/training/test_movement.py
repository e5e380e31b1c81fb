"""What a checkpoint says it lost of the movement of training, against what its reader gets."""

from __future__ import annotations

from dataclasses import astuple
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from dynaquant_core.methods.lattice.method import Lattice
from dynaquant_core.store.store import CheckpointStore
from dynaquant_core.training import movement
from dynaquant_core.training.begun import Begun
from dynaquant_core.training.checkpointer import Checkpointer
from dynaquant_core.training.movement import Movement, Start

NAMES = ("0.weight", "2.weight")


class Run:
    """A small regression that really trains."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 16))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=3e-3)
        self.inputs, noise = torch.randn(256, 32), torch.randn(256, 16)
        self.targets = self.inputs[:, :16].tanh() + 0.3 * noise

    def loss(self) -> torch.Tensor:
        return (self.model(self.inputs) - self.targets).square().mean()

    def quality(self) -> float:
        return float(self.loss())

    def train(self, checkpointer: Checkpointer, steps: int) -> None:
        for _ in range(steps):
            self.optimizer.zero_grad()
            self.loss().backward()
            self.optimizer.step()
            checkpointer.step()
        checkpointer.wait()

    def weights(self) -> np.ndarray:
        return flat(self.model.state_dict())


def flat(state: dict[str, torch.Tensor]) -> np.ndarray:
    return np.concatenate([state[name].double().numpy().ravel() for name in NAMES])


def expected(start: np.ndarray, true: np.ndarray, decoded: np.ndarray) -> dict[str, Any]:
    moved, taken = true - start, decoded - start
    along = taken @ moved / (moved @ moved)
    across = taken - along * moved
    return {
        "stale": pytest.approx(1 - along, abs=1e-6),  # the sample is float32
        "noise": pytest.approx(across @ across / (moved @ moved), rel=1e-4),
    }


def test_a_checkpoint_tells_what_its_reader_misses_since_the_last_restore(tmp_path: Path) -> None:
    run, start = Run(), Run().weights()
    settings: dict[str, Any] = {"every": 20, "evaluate": run.quality, "threshold": 0.05}
    with Checkpointer(tmp_path, run.model, run.optimizer, **settings) as checkpointer:
        run.train(checkpointer, 40)
    store = CheckpointStore(tmp_path)
    found = store.info(40).report["movement_lost"]
    assert found == expected(start, run.weights(), flat(store.load(40)["model"]))
    assert store.info(40).stale == found["stale"]
    again = Run()
    settings["evaluate"] = again.quality
    with Checkpointer(tmp_path, again.model, again.optimizer, **settings) as checkpointer:
        assert checkpointer.restore() == 40
        start = again.weights()
        again.train(checkpointer, 20)
    found = store.info(60).report["movement_lost"]
    assert found == expected(start, again.weights(), flat(store.load(60)["model"]))


def test_without_an_evaluation_nothing_is_told(tmp_path: Path) -> None:
    run = Run()
    with Checkpointer(tmp_path, run.model, run.optimizer, every=5) as checkpointer:
        run.train(checkpointer, 5)
    assert CheckpointStore(tmp_path).info(5).stale is None


def test_a_sample_of_a_large_model_is_bounded_and_near(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(movement, "SAMPLE", 5000)
    torch.manual_seed(0)
    model = nn.ModuleDict({"a": nn.Linear(256, 256), "b": nn.Linear(256, 64)})
    start = Start.sampled({f"model.{name}": value for name, value in model.state_dict().items()})
    assert set(start.values) == {f"model.{name}" for name in model.state_dict()}
    assert sum(values.numel() for values in start.values.values()) <= 5100
    live = {f"model.{name}": p + 0.01 * torch.randn_like(p) for name, p in model.state_dict().items()}
    decoded = [(name, p - 0.2 * (p - model.state_dict()[name[6:]])) for name, p in live.items()]
    passing = Movement(start, live).watch(decoded)
    assert dict(passing) == dict(decoded)
    assert passing.lost is not None
    assert astuple(passing.lost) == pytest.approx((0.2, 0.0), abs=1e-4)


@pytest.mark.parametrize("tap", range(9))
def test_a_sample_meets_every_tap_of_a_convolution(monkeypatch: pytest.MonkeyPatch, tap: int) -> None:
    monkeypatch.setattr(movement, "SAMPLE", 4096)
    still = torch.zeros(64, 64, 3, 3)
    moved = still.clone()
    moved.view(64, 64, 9)[..., tap] = 1.0
    passing = Movement(Start.sampled({"w": still}), {"w": moved}).watch([("w", still)])
    assert len(list(passing)) == 1
    assert passing.lost is not None
    assert passing.lost.stale == 1.0


def test_several_models_are_told_apart_and_what_cannot_be_sampled_is_left_out() -> None:
    models = {"one": nn.Linear(4, 4), "two": nn.Linear(4, 4)}
    live = {f"{one}.{name}": value for one in models for name, value in models[one].state_dict().items()}
    begun = Begun(models.values(), ())
    begun.now()
    start = begun.start(live)
    assert start is not None
    assert all(torch.equal(values, live[name].flatten()) for name, values in start.values.items())
    assert set(start.values) == set(live)
    with torch.device("meta"):
        hollow = nn.Linear(4, 4)
    for model in (hollow, nn.LazyLinear(4)):
        begun = Begun([model], ())
        begun.now()
        assert begun.start(dict(model.named_parameters())) is None


def test_nothing_is_told_of_what_is_as_it_was_or_has_another_shape() -> None:
    start = Start({"w": torch.zeros(4), "v": torch.zeros(4)}, 1)
    still = Movement(start, {"w": torch.zeros(1, 4), "v": torch.ones(1, 6), "x": torch.ones(1, 2)})
    passing = still.watch([("w", torch.zeros(1, 4)), ("v", torch.ones(1, 6)), ("x", torch.ones(1, 2))])
    assert len(list(passing)) == 3
    assert passing.lost is None
    passing = still.watch([("w", torch.ones(1, 4))])
    assert len(list(passing)) == 1
    assert passing.lost is not None
    assert astuple(passing.lost) == (0.0, float("inf"))
    assert passing.lost.report() == {}


def test_a_candidate_that_was_not_read_to_its_end_is_not_told() -> None:
    watched = Movement(Start({"w": torch.zeros(4)}, 1), {"w": torch.ones(1, 4)})
    passing = watched.watch([("w", torch.ones(1, 4)), ("v", torch.ones(4))])
    next(iter(passing))
    assert passing.lost is None


def test_a_restored_run_adds_no_more_noise_than_its_movement_heals(tmp_path: Path) -> None:
    found = {}
    for bound in (0.5, None):
        folder, run, again = tmp_path / str(bound), Run(), Run()
        method = {"name": "lattice", "max_noise": bound}
        settings: dict[str, Any] = {"every": 10, "threshold": 0.2, "method": method}
        with Checkpointer(folder, run.model, run.optimizer, evaluate=run.quality, **settings) as first:
            run.train(first, 40)
        with Checkpointer(folder, again.model, again.optimizer, evaluate=again.quality, **settings) as second:
            assert second.restore() == 40
            again.train(second, 10)
        info = CheckpointStore(folder).info(50)
        found[bound] = info.report["movement_lost"]["noise"], info.parts["weight"]["stored_bytes"]
    assert found[0.5][0] <= 0.5 < found[None][0]
    assert found[0.5][1] > found[None][1]


@pytest.mark.parametrize("filled", ["before", "after", "assigned"])
def test_movement_counts_from_the_first_step_whenever_the_weights_were_loaded(
    tmp_path: Path, filled: str
) -> None:
    """A pretrained file that was loaded after the Checkpointer was made counted as movement and hid noise."""
    run = Run()
    pretrained = {name: 3.0 * value for name, value in run.model.state_dict().items()}
    start = flat(pretrained)
    if filled == "before":
        run.model.load_state_dict(pretrained)
    with Checkpointer(
        tmp_path, run.model, run.optimizer, every=10, evaluate=run.quality, threshold=0.05
    ) as saves:
        assert saves.restore() == 0
        if filled != "before":
            run.model.load_state_dict(pretrained, assign=filled == "assigned")
        if filled == "assigned":  # as one does who gives the optimizer what is trained now
            run.optimizer.param_groups[0]["params"] = list(run.model.parameters())
        run.train(saves, 10)
    store = CheckpointStore(tmp_path)
    found = store.info(10).report["movement_lost"]
    assert found == expected(start, run.weights(), flat(store.load(10)["model"]))
    assert found["noise"] < 30


@pytest.mark.parametrize("unfrozen", ["from the start", "after a step"])
def test_layers_that_are_unfrozen_later_are_bounded_as_others(tmp_path: Path, unfrozen: str) -> None:
    """A body that learns slowly below a quick head got a million times its own movement as noise."""
    run = Run()
    for _ in range(150):
        run.optimizer.zero_grad()
        run.loss().backward()
        run.optimizer.step()
    head, body = run.model[2], run.model[0]
    nn.init.normal_(head.weight, std=0.05)
    before = body.weight.detach().clone()
    run.optimizer = torch.optim.AdamW(head.parameters(), lr=3e-2)
    slow = {"params": list(body.parameters()), "lr": 1e-6}
    with Checkpointer(
        tmp_path, run.model, run.optimizer, every=40, evaluate=run.quality, threshold=0.05
    ) as saves:
        if unfrozen == "from the start":
            run.optimizer.add_param_group(slow)
        run.train(saves, 1)
        if unfrozen == "after a step":
            run.optimizer.add_param_group(slow)
        run.train(saves, 39)
    found = CheckpointStore(tmp_path).load(40)["model"]["0.weight"]
    noise, moved = (float((body.weight.detach() - one).square().sum()) for one in (found, before))
    assert noise < 1e5 * moved


def test_values_that_are_no_numbers_count_as_not_there() -> None:
    """One infinity in a mask made all that is lost no number, and no candidate kept within the bound."""
    nan, inf = float("nan"), float("inf")
    start = Start({"w": torch.tensor([0.0, nan, -inf, 0.0])}, 1, frozenset({"w"}))
    watched = Movement(start, {"w": torch.tensor([[2.0, 1.0, -inf, 0.0]])})
    passing = watched.watch([("w", torch.tensor([[1.5, 1.0, -inf, 1.0]]))])
    assert len(list(passing)) == 1
    assert passing.lost is not None
    assert astuple(passing.lost) == (0.25, 0.25)
    assert watched.moved["w"] == pytest.approx(2.0**0.5)


def test_where_nothing_has_moved_the_most_careful_scale_is_taken(tmp_path: Path) -> None:
    """No training had yet taken any noise out, and a wide threshold let much of it in."""
    run = Run()
    with Checkpointer(tmp_path, run.model, run.optimizer, evaluate=run.quality, threshold=0.2) as saves:
        assert saves.restore() == 0
        saves.save()
        info = saves.wait()
        assert info is not None
        assert info.met
        assert info.config.scale == Lattice().space(gradients=False).axes["scale"][0]
        assert info.stale is None
    with Checkpointer(tmp_path, run.model, run.optimizer, evaluate=run.quality, threshold=0.2) as saves:
        saves.restore()
        restored = run.weights()
        saves.save()  # of what is on its lattice already: no noise comes to it
        saves.wait()
    assert np.array_equal(flat(CheckpointStore(tmp_path).load(0)["model"]), restored)
