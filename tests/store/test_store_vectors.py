"""Scales and biases of a state of weights alone, saved with one point of codebooks."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import dynaquant_core as dq

POINT = dq.Config(bins=16, prune=0.1, protect=0.005)


class Narrow(nn.Module):
    """Layers of every kind that has a bias, and vectors that are nobody's."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 48, 3)
        self.up = nn.ConvTranspose2d(16, 32, 3)
        self.norm = nn.BatchNorm2d(48)
        self.ln = nn.LayerNorm(40)
        self.lstm = nn.LSTM(8, 16)
        self.attention = nn.MultiheadAttention(32, 2)
        self.register_buffer("frequencies", torch.randn(64))
        self.loss = nn.CrossEntropyLoss(weight=torch.rand(32))
        self.scale = nn.Parameter(torch.randn(64))


def moved_from_round(model: nn.Module) -> nn.Module:
    """The model with values that no bfloat16 holds, running statistics included."""
    with torch.no_grad():
        for tensor in (*model.parameters(), *model.buffers()):
            if tensor.is_floating_point():
                tensor.add_(torch.rand_like(tensor) * 0.3)
    return model


def changed(before: dict[str, torch.Tensor], after: dict[str, torch.Tensor]) -> set[str]:
    return {name for name in before if before[name].dim() == 1 and not torch.equal(before[name], after[name])}


def test_only_scales_and_biases_of_layers_are_rounded_and_by_little(tmp_path: Path) -> None:
    torch.manual_seed(0)
    state = moved_from_round(Narrow()).state_dict()
    dq.save_file(state, tmp_path / "model.dq", config=POINT)
    again = dq.load_file(tmp_path / "model.dq")
    assert changed(state, again) == {
        "conv.bias", "up.bias", "norm.weight", "norm.bias", "ln.weight", "ln.bias",
        "lstm.bias_ih_l0", "lstm.bias_hh_l0", "attention.in_proj_bias", "attention.out_proj.bias",
    }  # fmt: skip
    for name in changed(state, again):
        assert again[name].dtype == torch.float32
        assert bool(((again[name] - state[name]).abs() <= 2**-7 * state[name].abs()).all()), name


def test_rounding_has_no_direction_and_keeps_what_it_gave(tmp_path: Path) -> None:
    state = {"fc.weight": torch.randn(20000, 2), "fc.bias": torch.full((20000,), 1 + 2**-9)}
    dq.save_file(state, tmp_path / "model.dq", config=POINT)
    once = dq.load_file(tmp_path / "model.dq")
    # A quarter of a step of 2^-7: 20,000 draws have a standard error of 2.4e-5, five of which are allowed.
    assert set(once["fc.bias"].tolist()) == {1.0, 1 + 2**-7}
    assert float(once["fc.bias"].double().mean()) - (1 + 2**-9) == pytest.approx(0, abs=1.2e-4)
    dq.save_file(once, tmp_path / "again.dq", config=POINT)
    assert torch.equal(dq.load_file(tmp_path / "again.dq")["fc.bias"], once["fc.bias"])


def test_what_rounding_adds_over_many_restores_has_no_direction_in_any_value(tmp_path: Path) -> None:
    """Each restore adds at most half a step of 2^-7 in the mean square where draws are independent."""
    drawn = torch.Generator().manual_seed(0)
    state = {"fc.weight": torch.randn(4096, 2, generator=drawn), "fc.bias": torch.full((4096,), 1.5)}
    true = state["fc.bias"].clone()
    for _ in range(20):
        move = 0.002 * torch.randn(4096, generator=drawn)
        true, state["fc.bias"] = true + move, state["fc.bias"] + move
        dq.save_file(state, tmp_path / "model.dq", config=POINT)
        state = dq.load_file(tmp_path / "model.dq")
    assert float((state["fc.bias"] - true).square().mean().sqrt()) < 20**0.5 * 2**-8


@pytest.mark.parametrize("case", ["exact", "model", "optimizer", "point", "lattice", "search", "paper"])
def test_they_stay_bit_for_bit_wherever_else(tmp_path: Path, case: str) -> None:
    torch.manual_seed(0)
    model = moved_from_round(nn.Sequential(nn.Linear(32, 64), nn.LayerNorm(64)))
    state, arguments = {"model": model.state_dict()}, {"config": POINT}
    if case == "exact":
        arguments["exact"] = ("*.bias", "1.weight")
    elif case == "model":
        arguments = {"config": dq.Config(bins="exact"), "model": model}
    elif case == "optimizer":
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        model(torch.randn(4, 32)).sum().backward()
        optimizer.step()
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
    elif case == "point":
        arguments = {"method": "dynaquant"}
    elif case == "lattice":
        arguments = {"config": dq.LatticeConfig(scale=0.5)}
    elif case == "search":
        arguments = {
            "method": "dynaquant",
            "threshold": 0.5,
            "evaluate": lambda held: 1.0 + float(held["model"]["0.weight"].std()),
        }
    else:
        arguments["method"] = {"name": "dynaquant", "profile": "paper"}
    dq.save_file(state, tmp_path / "model.dq", **arguments)
    again = dq.load_file(tmp_path / "model.dq")["model"]
    assert changed(state["model"], again) == set()


def test_the_callers_own_tensors_and_arrays_stay(tmp_path: Path) -> None:
    state = {"weight": np.random.default_rng(0).normal(size=(64, 64)), "bias": np.linspace(0.1, 1.0, 64)}
    before = state["bias"].copy()
    store = dq.CheckpointStore(tmp_path / "store")
    for step in (1, 2):
        store.save(step, state, config=POINT)
    assert np.array_equal(state["bias"], before)
    again = store.load(2)["bias"]
    assert again.dtype == np.float64
    assert 0 < np.abs(again / before - 1).max() <= 2**-7


def test_a_narrow_network_takes_less_than_an_eighth(tmp_path: Path) -> None:
    """Depthwise convolutions: a tenth are vectors, half of them averages of batch norms; all moves."""
    torch.manual_seed(0)
    layers = [
        layer
        for _ in range(6)
        for convolution in (
            nn.Conv2d(64, 64, 3, groups=64, bias=False),
            nn.Conv2d(64, 64, 1, bias=False),
        )
        for layer in (convolution, nn.BatchNorm2d(64))
    ]
    model = moved_from_round(nn.Sequential(*layers))
    store = dq.CheckpointStore(tmp_path / "store")
    raw = stored = 0
    for step in range(4):
        with torch.no_grad():
            for tensor in model.state_dict().values():
                if tensor.is_floating_point():
                    tensor.add_(torch.rand_like(tensor) * 0.4 * tensor.std())
        info = store.save(step, model.state_dict(), config=POINT)
        raw, stored = raw + info.raw_bytes, stored + info.stored_bytes
    assert raw / stored > 8
