"""Loading in place: into the tensors that exist, all of it or nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import dynaquant_core as dq
from dynaquant_core.store import CheckpointStore
from tests.store.kit import checkpoint_files, exact_store, filled, is_same, small_state


def test_load_into_writes_into_the_tensors_that_exist(tmp_path: Path) -> None:
    filled(tmp_path)
    tree: dict[str, Any] = small_state(77, seed=5)
    tensors = dict(tree["model"]) | {"frozen": tree["frozen"]}
    rng = tree["rng"]
    info = exact_store(tmp_path).load_into(tree, 20)
    assert info.step == 20
    assert is_same(tree, small_state(20))
    assert all(tree["model"].get(name, tree["frozen"]) is tensor for name, tensor in tensors.items())
    assert tree["rng"] is rng


def test_load_into_replaces_plain_values_and_long_lists(tmp_path: Path) -> None:
    stored = {"w": [torch.ones(3), 1], "log": [0.5] * 400, "text": b"x" * 300, "betas": (0.9, 0.99)}
    CheckpointStore(tmp_path).save(1, stored)
    tree = {"w": [torch.zeros(3), 2], "log": [0.1], "text": b"", "betas": (0.0, 0.0), "own": 3}
    inner = tree["w"][0]
    CheckpointStore(tmp_path).load_into(tree)
    assert is_same({key: tree[key] for key in stored}, stored)
    assert tree["w"][0] is inner
    assert tree["own"] == 3


def test_load_into_writes_through_parameters_and_leaves_grad_alone(tmp_path: Path) -> None:
    model = torch.nn.Linear(16, 16)
    twin = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    exact_store(tmp_path).save(1, {"model": model.state_dict()})
    with torch.no_grad():
        model.weight.zero_()
    exact_store(tmp_path).load_into({"model": dict(model.named_parameters())})
    assert torch.equal(model.weight, twin["weight"])
    assert model.weight.requires_grad


def test_load_into_a_tree_that_does_not_fit_changes_nothing(tmp_path: Path) -> None:
    filled(tmp_path)
    tree = small_state(5, seed=3)
    tree["model"]["layer0.weight"] = torch.zeros(3, 3)
    del tree["model"]["layer1.bias"]
    twin = {name: tensor.clone() for name, tensor in tree["model"].items()}
    with pytest.raises(dq.StateMismatchError, match=r"layer0\.weight.*layer1\.bias"):
        exact_store(tmp_path).load_into(tree)
    assert is_same(tree["model"], twin)


def test_load_into_damaged_files_changes_nothing(tmp_path: Path) -> None:
    filled(tmp_path, (1, 2))
    file = checkpoint_files(tmp_path)[-1]
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)
    tree = small_state(9, seed=3)
    with pytest.raises(dq.CorruptFileError):
        exact_store(tmp_path).load_into(tree, 2)
    assert is_same(tree, small_state(9, seed=3))
    info = exact_store(tmp_path).load_into(tree)
    assert (info.step, [item.step for item in info.skipped]) == (1, [2])
    assert is_same(tree, small_state(1))


def test_load_into_an_expanded_tensor_changes_nothing(tmp_path: Path) -> None:
    """Its elements share memory, so torch refuses to write there: after other tensors were written."""
    CheckpointStore(tmp_path).save(1, {"a": torch.ones(3, 3), "b": torch.ones(4, 1).expand(4, 8)})
    tree = {"a": torch.zeros(3, 3), "b": torch.zeros(4, 1).expand(4, 8)}
    with pytest.raises(dq.StateMismatchError, match="'b' is expanded in the tree"):
        CheckpointStore(tmp_path).load_into(tree)
    assert not tree["a"].any()


def test_load_into_takes_empty_arrays_and_tensors(tmp_path: Path) -> None:
    """NumPy gives them steps of 0, as expanded ones have; nothing is written there."""
    state = {"w": torch.ones(3), "none": np.zeros((0, 3)), "nor": np.zeros((2, 0)), "kept": torch.ones(0, 4)}
    exact_store(tmp_path).save(1, state)
    tree = {**state, "w": torch.zeros(3), "kept": torch.ones(1, 4)[:0].expand(0, 4)}
    exact_store(tmp_path).load_into(tree)
    assert is_same(tree, state)
