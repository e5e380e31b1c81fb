"""import: out of native files and into a store, and what it leaves out or refuses."""

from __future__ import annotations

import argparse
import pickle
import warnings
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from dynaquant_core.store import CheckpointStore
from tests.cli.words import Shell, training_state


def test_import_starts_a_store_at_the_files_own_step(shell: Shell, native: Path, tmp_path: Path) -> None:
    folder = tmp_path / "store"
    told = shell("import", native, folder, "--exact", "model.1", "--json")
    assert told.status == 0
    assert told.json()["step"] == 7
    state = CheckpointStore(folder).load()
    assert state["note"] == "first"
    original = training_state()
    assert torch.equal(state["model"]["1.weight"], original["model"]["1.weight"])
    assert state["optimizer"]["param_groups"] == original["optimizer"]["param_groups"]


def test_import_into_a_store_that_is_not_empty_is_refused(shell: Shell, native: Path, store: Path) -> None:
    outcome = shell("import", native, store)
    assert outcome.status == 1
    assert outcome.error()
    assert CheckpointStore(store).steps() == [10, 20, 30]


def test_import_reads_safetensors(shell: Shell, tmp_path: Path) -> None:
    path = tmp_path / "weights.safetensors"
    tensors = training_state()["model"]
    save_file(tensors, path)
    assert shell("import", path, tmp_path / "store", "--step", 3, "--exact", "*").status == 0
    state = CheckpointStore(tmp_path / "store").load(3)
    assert {name: torch.equal(state[name], tensors[name]) for name in tensors} == dict.fromkeys(tensors, True)


@pytest.mark.parametrize("module", ["numpy._core", "numpy.core"])
def test_import_reads_the_numpy_numbers_of_a_log(shell: Shell, tmp_path: Path, module: str) -> None:
    log = {"loss": np.float64(0.25), "losses": np.arange(5, dtype=np.float32), "best": np.int64(3)}
    torch.save({"model": training_state()["model"], "log": log}, tmp_path / "saved.pt")
    path = tmp_path / "native.pt"
    with zipfile.ZipFile(tmp_path / "saved.pt") as saved, zipfile.ZipFile(path, "w") as native:
        for name in saved.namelist():  # NumPy's own name before 2.0 and since
            native.writestr(name, saved.read(name).replace(b"numpy._core", module.encode()))
    assert shell("import", path, tmp_path / "store", "--step", 3).status == 0
    read = CheckpointStore(tmp_path / "store").load(3)["log"]
    assert {name: (type(value), value.dtype, value.tolist()) for name, value in read.items()} == {
        name: (type(value), value.dtype, value.tolist()) for name, value in log.items()
    }


def test_import_refuses_numpy_arrays_of_objects(shell: Shell, tmp_path: Path) -> None:
    torch.save({"names": np.array(["a", 1], dtype=object)}, tmp_path / "bad.pt")
    outcome = shell("import", tmp_path / "bad.pt", tmp_path / "store")
    assert outcome.status == 1
    assert "bad.pt" in outcome.error()
    assert "ObjectDType" in outcome.error()
    assert not (tmp_path / "store").exists()


class Unwelcome:
    """Something that only a pickle could bring back."""


def test_import_leaves_out_what_no_store_can_hold_and_names_it(shell: Shell, tmp_path: Path) -> None:
    path, told = tmp_path / "native.pt", {"lr": 0.1, "tags": {"a"}, "args": argparse.Namespace(width=3)}
    torch.save({"model": training_state()["model"], "hparams": told, "pair": [{1}, 2]}, path)
    refused = shell("import", path, tmp_path / "store")
    assert "argparse.Namespace" in refused.error()
    assert "--trust" in refused.error()
    assert not (tmp_path / "store").exists()
    outcome = shell("import", path, tmp_path / "store", "--trust")
    assert outcome.status == 0
    for named in (
        "hparams.tags (builtins.set)",
        "hparams.args (argparse.Namespace)",
        "pair.0 (builtins.set)",
    ):
        assert named in outcome.err
    state = CheckpointStore(tmp_path / "store").load()
    assert (state["hparams"], state["pair"]) == ({"lr": 0.1}, [None, 2])
    torch.save(Unwelcome(), path)
    whole = shell("import", path, tmp_path / "other", "--trust")
    assert "Unwelcome" in whole.error()


def test_import_says_why_a_tensor_is_left_out(shell: Shell, tmp_path: Path) -> None:
    """That no store holds a torch.Tensor is no answer."""
    records = np.zeros(2, dtype=[("step", "i4")])
    odd = {"adjacency": torch.eye(3).to_sparse(), "codes": quantised(), "records": records}
    torch.save({"w": torch.ones(3), **odd}, tmp_path / "odd.pt")
    outcome = shell("import", tmp_path / "odd.pt", tmp_path / "store", "--trust", "--json")
    assert outcome.json()["left_out"] == [
        "adjacency (torch.Tensor of torch.float32, torch.sparse_coo)",
        "codes (torch.Tensor of torch.qint8, torch.strided)",
        "records (numpy.ndarray of [('step', '<i4')])",
    ]


def quantised() -> torch.Tensor:
    """A tensor of torch's own eight bits; saying that they are on their way out is torch's habit."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8)


def test_import_takes_the_state_of_a_model_that_was_pickled_whole(shell: Shell, tmp_path: Path) -> None:
    path, model = tmp_path / "whole.pt", torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.BatchNorm1d(8))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    torch.save(model, path)
    assert "--trust" in shell("import", path, tmp_path / "alone").error()
    assert shell("import", path, tmp_path / "alone", "--trust", "--exact", "*").status == 0
    torch.save({"nets": [model], "optimizer": optimizer, "epoch": 3}, path)
    outcome = shell("import", path, tmp_path / "store", "--trust", "--exact", "*")
    assert "left out" not in outcome.err
    state = CheckpointStore(tmp_path / "store").load()
    for found in (CheckpointStore(tmp_path / "alone").load(), state["nets"][0]):
        assert torch.equal(found["0.weight"], model[0].weight)
        model.load_state_dict(found)
    assert state["epoch"] == 3
    optimizer.load_state_dict(state["optimizer"])


@pytest.mark.parametrize("content", ["object", "plain pickle", "noise", "text", "empty", "half"])
def test_import_refuses_what_could_run_code_or_is_damaged(shell: Shell, tmp_path: Path, content: str) -> None:
    path = tmp_path / "bad.pt"
    if content == "object":
        torch.save({"x": Unwelcome()}, path)
    elif content == "half":
        torch.save(training_state(), path)
        path.write_bytes(path.read_bytes()[:2000])
    else:
        path.write_bytes(
            {
                "plain pickle": pickle.dumps(Unwelcome()),
                "noise": b"\x00" * 99,
                "text": b"import torch\n" * 9,
                "empty": b"",
            }[content]
        )
    outcome = shell("import", path, tmp_path / "store")
    assert outcome.status == 1
    assert "bad.pt" in outcome.error()
    assert ("could run code" in outcome.error()) == (content == "object")
    assert not (tmp_path / "store").exists()

    assert "weights_only" not in outcome.err


def test_import_of_a_file_that_was_cut_says_damaged_wherever_that_was(shell: Shell, tmp_path: Path) -> None:
    whole, path = tmp_path / "whole.pt", tmp_path / "cut.pt"
    torch.save({f"layer.{i}": torch.randn(3, 50) for i in range(150)}, whole)
    for part in (2, 3, 4, 5):
        path.write_bytes(whole.read_bytes()[: whole.stat().st_size * part // 8])
        outcome = shell("import", path, tmp_path / "store")
        assert outcome.status == 1
        assert "damaged" in outcome.error()
