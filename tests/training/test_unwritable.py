"""Weights in memory that nobody may write: neither a search nor a restore does, and the process lives."""

import numpy as np
import pytest
import torch
from torch import nn

import dynaquant_core as dq
from dynaquant_core.training.unwritable import spare_unwritable
from tests.programs import run
from tests.training.mapped_life import mapped


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "table.npy"
    np.save(path, np.random.default_rng(0).normal(size=(64, 32)).astype(np.float32))
    return path


@pytest.mark.parametrize("evaluates", [True, False])
def test_a_table_that_is_mapped_for_reading_is_kept_exact_and_comes_back(tmp_path, path, evaluates):
    for start in (0, 2):
        words = ["-m", "tests.training.mapped_life", tmp_path / "run", path, evaluates]
        done = run(words)
        assert done.returncode == 0, done.stderr
        assert done.stdout.split() == [str(start), "True", "False", str(evaluates), "True"]


def test_other_values_in_the_checkpoint_are_refused_before_anything_is_touched(tmp_path, path):
    model = nn.Sequential(nn.Embedding(64, 32), nn.Linear(32, 32))
    with dq.Checkpointer(tmp_path / "run", model, exact="*") as checkpoints:
        checkpoints.save()
    here = nn.Sequential(nn.Embedding.from_pretrained(mapped(path)), nn.Linear(32, 32))
    before = here[1].weight.detach().clone()
    with dq.Checkpointer(tmp_path / "run", here) as checkpoints:
        with pytest.raises(
            dq.StateMismatchError, match=r"model has 0\.weight in read-only memory, .*mmap_mode"
        ):
            checkpoints.restore()
        assert torch.equal(here[1].weight, before)
        here[0].weight.data = torch.from_numpy(np.load(path, mmap_mode="c"))
        assert checkpoints.restore() == 0
    assert torch.equal(here[0].weight, model[0].weight)


def test_what_can_be_written_is_written_as_ever(tmp_path, path):
    model = nn.Embedding.from_pretrained(torch.from_numpy(np.load(path, mmap_mode="c")))
    state = model.state_dict()
    spare_unwritable(model, state, "model")
    assert state["weight"] is not model.weight
    with dq.Checkpointer(tmp_path / "run", model) as checkpoints:
        checkpoints.save()
    stored = dq.CheckpointStore(tmp_path / "run").load()["model"]["weight"]
    assert not torch.equal(stored, model.weight)


def test_a_tree_in_memory_that_cannot_be_written_is_refused_untouched(tmp_path, path):
    store = dq.CheckpointStore(tmp_path / "run")
    store.save(1, {"table": torch.zeros(64, 32), "bias": torch.ones(3)})
    tree = {"table": mapped(path), "bias": torch.zeros(3)}
    with pytest.raises(dq.StateMismatchError, match="'table' lies in read-only memory"):
        store.load_into(tree)
    assert tree["bias"].sum() == 0.0
    store.close()


def test_a_file_of_mapped_weights_is_compressed_as_any(tmp_path, path):
    """Without a run nothing is written there."""
    state = {"table": mapped(path)}
    dq.save_file(state, tmp_path / "table.dq")
    assert not torch.equal(dq.load_file(tmp_path / "table.dq")["table"], state["table"])
