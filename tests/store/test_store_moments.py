"""Moments policies in a store: chains, reloading into an optimizer, compaction, what is said."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
import torch

from dynaquant_core.errors import ConfigError
from dynaquant_core.files import load_file, save_file
from dynaquant_core.store import CheckpointStore
from tests.methods.moment_states import adamw, model, train

POLICIES = ("compact", "minimal", "sparse", "second", "none")


def state_of(network: torch.nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    return {"model": network.state_dict(), "optimizer": optimizer.state_dict()}


def moments_of(state: dict[str, Any]) -> list[torch.Tensor]:
    return [
        tensor
        for entries in state["optimizer"]["state"].values()
        for key, tensor in entries.items()
        if key != "step"
    ]


def filled(path: Path, policy: str, steps: int = 5, **options: Any) -> dict[int, list[torch.Tensor]]:
    """Saves a run of some checkpoints; returns what each drafted moment decodes to, by step."""
    network = model()
    optimizer = adamw(network)
    shown = {}
    with CheckpointStore(path, moments=policy, **options) as store:
        for step in range(1, steps + 1):
            train(network, optimizer, 3, seed=step)
            store.save(step, state_of(network, optimizer))
            shown[step] = moments_of(CheckpointStore(path).load(step))
    return shown


@pytest.mark.parametrize("policy", POLICIES)
def test_a_chain_is_read_and_a_run_goes_on_from_it(policy: str, tmp_path: Path) -> None:
    filled(tmp_path, policy)
    loaded = CheckpointStore(tmp_path).load()  # a reader need not know the policy
    network = model()
    optimizer = adamw(network)
    network.load_state_dict(loaded["model"])
    optimizer.load_state_dict(loaded["optimizer"])
    assert optimizer.state_dict()["state"][0]["step"] == 15
    train(network, optimizer, 5, seed=9)
    assert all(parameter.isfinite().all() for parameter in network.parameters())


@pytest.mark.parametrize("policy", POLICIES)
def test_compaction_keeps_every_bit_and_the_policy(policy: str, tmp_path: Path) -> None:
    shown = filled(tmp_path, policy, keep_last=1)
    before = sum(path.stat().st_size for path in tmp_path.glob("*.dq"))
    store = CheckpointStore(tmp_path, moments=policy, keep_last=1, max_chain=0)
    store.load()
    store.compact()
    found = moments_of(store.load(5))
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(found, shown[5], strict=True))
    assert sum(path.stat().st_size for path in tmp_path.glob("*.dq")) < before


def test_another_policy_in_the_same_store(tmp_path: Path) -> None:
    filled(tmp_path, "8bit", steps=2)
    store = CheckpointStore(tmp_path, moments="minimal")
    state = store.load()
    store.save(3, state)
    assert len(CheckpointStore(tmp_path).load(3)["optimizer"]["state"]) == len(state["optimizer"]["state"])
    sizes = [store.info(step).parts["moment"]["stored_bytes"] for step in (1, 3)]
    assert sizes[1] < 0.3 * sizes[0]


def test_dropped_moments_are_said_once_a_store(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        filled(tmp_path, "second", steps=3)
    assert sum("first moments" in record.getMessage() for record in caplog.records) == 1


def test_the_nearest_policy_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="did you mean 'minimal'"):
        CheckpointStore(tmp_path, moments="minimum")


@pytest.mark.parametrize("flat", [False, True])
def test_second_moments_stay_positive_in_a_state_without_groups(tmp_path, flat):
    """A step on negative ones makes weights NaN; safetensors files and torch have such states."""
    torch.manual_seed(0)
    model = torch.nn.Linear(64, 64)
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(3):
        model(torch.randn(8, 64) * torch.logspace(-4, 1, 64)).square().mean().backward()
        optimizer.step()
    inner = optimizer.state_dict()["state"]
    state = {f"opt.{n}.{kind}": value for n, kinds in inner.items() for kind, value in kinds.items()}
    save_file(state if flat else {"opt": inner}, tmp_path / "it.dq")
    read = load_file(tmp_path / "it.dq")
    second = read["opt.0.exp_avg_sq"] if flat else read["opt"][0]["exp_avg_sq"]
    assert not torch.equal(second, inner[0]["exp_avg_sq"])
    assert ((second > 0) == (inner[0]["exp_avg_sq"] > 0)).all()


@pytest.mark.parametrize("weights", [64, 512])
def test_sums_of_a_normaliser_are_no_moments(tmp_path, weights):
    """They lie beside a count of steps as Adagrad's do, and beside what was made of them."""
    total = 1e6 * torch.randn(512, dtype=torch.float64).abs()
    held = {"step": torch.tensor(100), "sum": total, "mean": total / 100}
    alone = {"step": torch.tensor(100), "sum": torch.rand(300)}
    net = {"fc.weight": torch.randn(weights, 64), "norm.weight": torch.randn(weights)}
    save_file({"model": net, "normaliser": held, "other": alone}, tmp_path / "x.dq")
    loaded = load_file(tmp_path / "x.dq")
    assert all(torch.equal(loaded["normaliser"][name], value) for name, value in held.items())
    assert torch.equal(loaded["other"]["sum"], alone["sum"])


def test_sums_of_an_adagrad_that_was_cut_out_take_a_byte(tmp_path):
    layer = torch.nn.Linear(64, 64)
    optimizer = torch.optim.Adagrad(layer.parameters())
    layer(torch.randn(8, 64)).square().sum().backward()
    optimizer.step()
    inner = optimizer.state_dict()["state"]
    save_file({"model": layer.state_dict(), "adagrad": inner}, tmp_path / "x.dq")
    found, sums = load_file(tmp_path / "x.dq")["adagrad"][0]["sum"], inner[0]["sum"]
    assert not torch.equal(found, sums)
    assert ((found - sums).abs() <= 0.096 * sums + 1e-9).all()


@pytest.mark.parametrize("policy", ["8bit", *POLICIES])
def test_moments_that_float32_does_not_tell_apart_stay_exact(policy: str, tmp_path: Path) -> None:
    """In double precision: a bias before a batch norm has gradients of rounding's size, a dead layer less."""
    drawn = torch.Generator().manual_seed(0)
    second = (torch.randn(20, 30, generator=drawn, dtype=torch.float64) * 1e-33).square()
    entry = {"step": torch.tensor(3.0), "exp_avg": 1e-15 * second.sqrt(), "exp_avg_sq": second}
    state = {
        "w": torch.randn(20, 30, dtype=torch.float64),
        "optimizer": {"state": {0: entry}, "param_groups": []},
    }
    save_file(state, tmp_path / "a.dq", moments=policy)
    loaded = load_file(tmp_path / "a.dq")["optimizer"]["state"][0]
    assert all(torch.equal(loaded[kind], entry[kind]) for kind in entry)
