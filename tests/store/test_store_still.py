"""What trains after a save that saw it as it was restored: the next restore keeps how it moved."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import dynaquant_core as dq
from dynaquant_core.config import LatticeConfig
from dynaquant_core.store import CheckpointStore

#: Deviation of a share that noise without a direction gives, at the movements below, is a fiftieth.
NEAR = 0.1
SPREAD = 0.02

Weights = dict[str, Tensor]
Way = Callable[[CheckpointStore], Weights]


def drawn(seed: int, share: float = 1.0, side: int = 400) -> Tensor:
    return torch.randn(side, side, generator=torch.Generator().manual_seed(seed)) * SPREAD * share


def kept(path: Path, weights: Weights, start: Weights, name: str) -> float:
    """The share of a tensor's movement since ``start`` that the newest checkpoint gives back."""
    moved = (weights[name].double() - start[name].double()).flatten()
    back = (CheckpointStore(path).load()["model"][name].double() - start[name].double()).flatten()
    return float(moved @ back / (moved @ moved))


def filled(path: Path, max_chain: int = 64, count: int = 1) -> Weights:
    """A run of some checkpoints that ended."""
    weights = {"a.weight": drawn(0), "b.weight": drawn(1), "c.bias": drawn(2)[0].clone()}
    with CheckpointStore(path, max_chain=max_chain) as store:
        for step in range(count):
            store.save(step, {"model": weights}, config=LatticeConfig(scale=0.5))
            weights = {name: tensor + 0.01 * drawn(step + 3)[0] for name, tensor in weights.items()}
    return weights


def resumed(store: CheckpointStore) -> Weights:
    return store.resume()["model"]


def looked(store: CheckpointStore) -> Weights:
    return store.load()["model"]


def twice(store: CheckpointStore) -> Weights:
    store.resume()
    return store.resume()["model"]


def into(store: CheckpointStore) -> Weights:
    weights = {
        "a.weight": torch.zeros(400, 400),
        "b.weight": torch.zeros(400, 400),
        "c.bias": torch.zeros(400),
    }
    store.load_into({"model": weights})
    return weights


def in_part(store: CheckpointStore) -> Weights:
    return store.load(names=["model*"])["model"]


@pytest.mark.parametrize("later", [0.5, 0.45, 1.0])
@pytest.mark.parametrize("between", [0.5, 0.3, "exact", "bf16"])
@pytest.mark.parametrize("trains", [False, True], ids=["idle", "other trains"])
def test_what_moves_after_a_save_that_saw_it_still_is_kept(
    tmp_path: Path, trains: bool, between: Any, later: float
) -> None:
    """A layer is frozen until the first save, optimizers take turns, or the run saves where it began."""
    filled(tmp_path)
    with CheckpointStore(tmp_path) as store:
        weights = resumed(store)
        start = {name: tensor.clone() for name, tensor in weights.items()}
        for step in (1, 2):
            if trains:
                weights["b.weight"] += drawn(20 + step, 0.05)
            store.save(step, {"model": weights}, config=LatticeConfig(scale=between))
            held = CheckpointStore(tmp_path).load()["model"]["a.weight"]
            assert torch.equal(held, start["a.weight"]), "it takes no noise as long as it is still"
        for step in (3, 4, 5):
            weights["a.weight"] += drawn(30, 0.02)
            store.save(step, {"model": weights}, config=LatticeConfig(scale=later))
            assert abs(kept(tmp_path, weights, start, "a.weight") - 1) < NEAR * max(1, 2 * later)


@pytest.mark.parametrize("begin", [resumed, looked, twice, into, in_part])
@pytest.mark.parametrize(("max_chain", "count"), [(64, 1), (1, 2), (1, 3), (0, 1), (4, 1), (4, 3)])
def test_whatever_the_save_between_is_and_however_the_run_was_restored(
    tmp_path: Path, max_chain: int, count: int, begin: Way
) -> None:
    """A key, where the chain was full; a delta; later keys, and deltas on a link in the middle."""
    filled(tmp_path, max_chain, count)
    with CheckpointStore(tmp_path, max_chain=max_chain) as store:
        weights = begin(store)
        start = {name: tensor.clone() for name, tensor in weights.items()}
        for step in range(10, 20):
            if step > 12:
                weights["a.weight"] += drawn(30, 0.02)
            store.save(step, {"model": weights}, config=LatticeConfig(scale=0.5))
            if step > 12:
                assert abs(kept(tmp_path, weights, start, "a.weight") - 1) < NEAR


def test_a_run_that_goes_back_in_its_own_process_keeps_what_moves_then(tmp_path: Path) -> None:
    weights = filled(tmp_path / "other")
    with CheckpointStore(tmp_path / "run") as store:
        for step in range(3):
            store.save(step, {"model": weights}, config=LatticeConfig(scale=0.5))
            weights["a.weight"] = weights["a.weight"] + drawn(40 + step, 0.1)
        for step in (10, 20):
            weights = resumed(store)
            start = {name: tensor.clone() for name, tensor in weights.items()}
            store.save(step, {"model": weights}, config=LatticeConfig(scale=0.5))
            weights["a.weight"] += drawn(step, 0.02)
            store.save(step + 1, {"model": weights}, config=LatticeConfig(scale=0.5))
            assert abs(kept(tmp_path / "run", weights, start, "a.weight") - 1) < NEAR


def test_a_layer_that_is_frozen_at_first_and_trained_later_keeps_what_it_learnt(tmp_path: Path) -> None:
    def run(steps: int, frozen: int) -> tuple[Tensor, Tensor]:
        torch.manual_seed(0)
        model = nn.Sequential(
            nn.Linear(32, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 4)
        )
        optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
        with dq.Checkpointer(tmp_path, model, optimizer, every=5) as checkpoints:
            first = checkpoints.restore()
            start = model[2].weight.detach().clone()
            for step in range(first, first + steps):
                model[2].requires_grad_(step >= first + frozen)
                inputs = torch.randn(64, 32, generator=torch.Generator().manual_seed(step))
                loss = nn.functional.cross_entropy(model(inputs), inputs[:, :4].argmax(1))
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                checkpoints.step()
        return start, model[2].weight.detach()

    run(10, 0)
    start, weights = run(10, 5)
    assert not torch.equal(start, weights)
    assert abs(kept(tmp_path, {"2.weight": weights}, {"2.weight": start}, "2.weight") - 1) < 0.2
