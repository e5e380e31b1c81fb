"""movement_lost and unchanged, against their definition in plain NumPy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from dynaquant_core.experiments.config import validate
from dynaquant_core.experiments.measures import MovementWatch, by_direction
from dynaquant_core.experiments.models.resnet import ResNet
from dynaquant_core.experiments.recorder import Recorder
from dynaquant_core.experiments.report.table import checkpoint_rows
from dynaquant_core.experiments.trainer import Trainer


def weights(seed: int, scale: float = 1.0) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {name: scale * torch.randn(6, 5, generator=generator) for name in ("a", "b")}


def plus(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: one[name] + other[name] for name in one}


def flat(tensors: dict[str, torch.Tensor]) -> np.ndarray:
    return np.concatenate([tensors[name].numpy().astype(np.float64).ravel() for name in tensors])


def test_the_three_figures_are_those_of_their_definition() -> None:
    start, first, movement, error = (weights(seed) for seed in range(4))
    watch = MovementWatch(start, restored=False)
    assert watch.lost(first, first)["er"] is None
    watch.advance(first)
    true, decoded = plus(start, movement), plus(plus(start, movement), error)
    lost = watch.lost(true, decoded)
    m, d = flat(true) - flat(start), flat(decoded) - flat(start)
    along = d @ m / (m @ m)
    assert lost["stale"] == pytest.approx(1 - along)
    assert lost["noise"] == pytest.approx(np.sum((d - along * m) ** 2) / (m @ m))
    e, before = flat(true) - flat(decoded), flat(true) - flat(first)
    assert lost["er"] == pytest.approx((e @ e) / (before @ before))


def test_the_extremes_read_as_they_should() -> None:
    start, movement = weights(0), weights(1)
    true = plus(start, movement)
    watch = MovementWatch(start, restored=True)
    assert watch.lost(true, true) == {"stale": 0.0, "noise": 0.0, "er": 0.0}
    assert watch.lost(true, start) == {"stale": 1.0, "noise": 0.0, "er": 1.0}
    assert watch.lost(start, start) == {"stale": None, "noise": None, "er": None}


def test_unchanged_counts_against_the_checkpoint_before() -> None:
    start = weights(0)
    first = {name: tensor.clone() for name, tensor in start.items()}
    assert MovementWatch(start, restored=False).unchanged(first) is None
    watch = MovementWatch(start, restored=True)
    first["a"][0] += 1
    assert watch.unchanged(first) == pytest.approx(55 / 60)
    watch.advance(first)
    assert watch.unchanged(first) == 1.0


def test_the_watch_keeps_what_it_saw_when_the_model_moves_on() -> None:
    live = weights(0)
    watch = MovementWatch(live, restored=True)
    before = {name: tensor.clone() for name, tensor in live.items()}
    for tensor in live.values():
        tensor += 1
    assert watch.unchanged(before) == 1.0


def test_a_length_that_changed_is_not_stale_by_direction() -> None:
    start, movement = weights(0), weights(1)
    true = plus(start, movement)
    shorter = true | {"a": true["a"] * 0.8}
    lost = MovementWatch(start, restored=True, directions={"a"}).lost(true, shorter)
    assert lost["stale"] > 0.05
    assert lost["stale_direction"] == pytest.approx(0, abs=1e-6)
    elsewhere = MovementWatch(start, restored=True, directions={"b"}).lost(true, shorter)
    assert elsewhere["stale_direction"] == pytest.approx(elsewhere["stale"], abs=1e-6)


def test_a_turn_that_was_lost_is_stale_whatever_the_length() -> None:
    start, movement = weights(0), weights(1)
    true = plus(start, movement)
    watch = MovementWatch(start, restored=True, directions={"a", "b"})
    m = flat(movement)
    expected = 0.0
    for name, decoded in start.items():
        w, d = (tensor.numpy().astype(np.float64).ravel() for tensor in (true[name], decoded))
        expected += (w - d * (w @ w) / (d @ w)) @ movement[name].numpy().astype(np.float64).ravel()
    found = [watch.lost(true, {n: t * scale for n, t in start.items()}) for scale in (0.5, 1.0, 2.0)]
    assert [lost["stale_direction"] for lost in found] == pytest.approx([expected / (m @ m)] * 3)
    assert expected / (m @ m) > 0.2


def test_only_convolutions_beside_a_batch_norm_count_by_direction() -> None:
    model = ResNet(classes=10, widths=(8, 16), depths=1)
    found = by_direction(model)
    names = {name for name, tensor in model.named_parameters() if tensor.dim() == 4}
    assert found == names
    assert by_direction(torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.Linear(8, 2))) == frozenset()


def test_a_metric_of_one_value_has_no_standard_error(
    tmp_path: Path, workplace: Path, tiny: dict[str, Any]
) -> None:
    """Of one batch of 16 sequences; 0 would say that the degradation is known for certain."""
    found = {}
    for tokens in (1024, 256):
        data = tiny["data"] | {"heldout_tokens": tokens}
        experiment = validate(tiny | {"data": data, "method": "dynaquant", "search": False}, "tiny")
        trainer = Trainer(experiment)
        with Recorder(trainer, experiment, tmp_path / str(tokens), []) as recorder:
            for _ in range(10):
                trainer.advance()
                recorder.after_step()
            search, heldout = (trainer.quality(part) for part in (trainer.data.search, trainer.data.heldout))
            found[tokens] = recorder.measure(search, heldout)
    assert found[1024]["degradation"]["heldout_se"] > 0
    assert found[256]["degradation"]["heldout_se"] is None
    shown = [row["held-out"] for row in checkpoint_rows({"checkpoints": list(found.values())})]
    assert ["\u00b1" in text for text in shown] == [True, False]
    assert shown[1] == f"{found[256]['degradation']['heldout']:+.2%}"
