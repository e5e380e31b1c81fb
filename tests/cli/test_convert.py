"""export, import, compact, compress and decompress: out of native files and back into them."""

from __future__ import annotations

import argparse
import pickle
import warnings
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from dynaquant_core.store import CheckpointStore
from dynaquant_core.training import Checkpointer
from tests.cli.words import Shell, checkpoint_files, training_state


@pytest.fixture
def native(tmp_path: Path) -> Path:
    path = tmp_path / "native.pt"
    torch.save(training_state(), path)
    return path


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


@pytest.mark.parametrize("command", ["compress", "import"])
def test_what_is_compressed_already_is_named_as_such(
    shell: Shell, looked_at: Path, tmp_path: Path, command: str
) -> None:
    packed = checkpoint_files(looked_at)[0]
    words = (packed, tmp_path / "out") if command == "import" else (packed, "-o", tmp_path / "out.dq")
    outcome = shell(command, *words)
    assert outcome.status == 1
    assert "found a .dq file" in outcome.error()
    assert "dynaquant decompress" in outcome.error()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("command", ["compress", "import"])
@pytest.mark.parametrize("method", ["zstd", "lattice"])
def test_a_point_of_another_method_than_the_named_one_is_refused(
    shell: Shell, native: Path, tmp_path: Path, command: str, method: str
) -> None:
    words = (native, tmp_path / "out") if command == "import" else (native, "-o", tmp_path / "out")
    outcome = shell(command, *words, "--method", method, "--bins", 8)
    assert outcome.status == 1
    assert f"belongs to the method 'dynaquant', and the method asked for is '{method}'" in outcome.error()
    assert not (tmp_path / "out").exists()
    for named in ((), ("--method", "dynaquant")):
        assert shell("compress", native, "--dry-run", "--bins", 8, *named).status == 0


@pytest.mark.parametrize("ending", ["pt", "safetensors"])
def test_export_writes_what_others_read(shell: Shell, looked_at: Path, tmp_path: Path, ending: str) -> None:
    out = tmp_path / f"out.{ending}"
    assert shell("export", looked_at, "--step", 20, "-o", out).status == 0
    state = CheckpointStore(looked_at).load(20)
    if ending == "pt":
        written = torch.load(out, weights_only=True)["model"]["0.weight"]
    else:
        written = load_file(out)["model.0.weight"]
    assert torch.equal(written, state["model"]["0.weight"])


def test_export_best_takes_the_best_measured_and_says_its_figures(shell: Shell, tmp_path: Path) -> None:
    model, losses = torch.nn.Linear(64, 64), iter([3.0, 2.0, 2.5])
    now = {"loss": 0.0}
    settings: dict[str, Any] = {"every": 1, "exact": ("*.bias",)}
    settings["evaluate"] = lambda: now["loss"] + 1e-9 * model.weight.abs().sum().item()
    with Checkpointer(tmp_path / "store", model, **settings) as checkpoints:
        for loss in losses:
            now["loss"] = loss
            checkpoints.step()
    told = shell("export", tmp_path / "store", "--best", "-o", tmp_path / "best.pt")
    assert told.status == 0
    assert told.out.strip().endswith("best.pt: step 2, the best: 2 as stored, 2 before (0.00% worse)")
    written, best = (
        torch.load(tmp_path / "best.pt", weights_only=True),
        CheckpointStore(tmp_path / "store").load(2),
    )
    assert torch.equal(written["model"]["weight"], best["model"]["weight"])


def test_export_best_where_nothing_was_measured_or_beside_a_step_is_refused(
    shell: Shell, looked_at: Path, tmp_path: Path
) -> None:
    outcome = shell("export", looked_at, "--best", "-o", tmp_path / "x.pt")
    assert outcome.status == 1
    assert "no checkpoint whose quality was measured" in outcome.error()
    assert shell("export", looked_at, "--best", "--step", 20, "-o", tmp_path / "x.pt").status == 2
    assert not (tmp_path / "x.pt").exists()


def test_export_names_the_targets_it_knows(shell: Shell, looked_at: Path, tmp_path: Path) -> None:
    outcome = shell("export", looked_at, "--to", "safetensor", "-o", tmp_path / "x")
    assert outcome.status == 1
    assert "safetensors" in outcome.error()


def test_export_takes_a_single_delta_file(shell: Shell, looked_at: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.pt"
    assert shell("export", checkpoint_files(looked_at)[2], "-o", out).status == 0
    state = CheckpointStore(looked_at).load(30)
    assert torch.equal(torch.load(out, weights_only=True)["model"]["0.weight"], state["model"]["0.weight"])


def test_export_says_so_when_it_cannot_write(shell: Shell, looked_at: Path, tmp_path: Path) -> None:
    outcome = shell("export", looked_at, "-o", tmp_path / "no" / "such" / "folder" / "out.pt")
    assert outcome.status == 1
    assert outcome.error()


def test_compact_keeps_every_bit_and_frees_chains(shell: Shell, store: Path) -> None:
    before = {step: CheckpointStore(store).load(step)["model"]["0.weight"] for step in (10, 20, 30)}
    told = shell("compact", store, "--max-chain", 0, "--json")
    assert told.status == 0
    assert list(told.json()["before"]) == list(told.json()["after"]) == ["10", "20", "30"]
    opened = CheckpointStore(store)
    assert {opened.info(step).kind for step in opened.steps()} == {"key"}
    for step, weight in before.items():
        assert torch.equal(opened.load(step)["model"]["0.weight"], weight)


def test_compact_that_cannot_do_all_says_which_and_ends_in_1(shell: Shell, store: Path) -> None:
    (damaged,) = store.glob("step-000000020-*")
    damaged.write_bytes(damaged.read_bytes()[:-40])
    told = shell("compact", store, "--max-chain", 0)
    assert told.status == 1
    assert "30" in told.err
    assert shell("compact", store, "--max-chain", 0, "--json").json()["left"] == [30]


def test_compress_with_a_scale_of_the_lattice(shell: Shell, native: Path, tmp_path: Path) -> None:
    fine, coarse = (tmp_path / f"{scale}.dq" for scale in ("0.1", "1"))
    assert shell("compress", native, "-o", fine, "--scale", 0.1).status == 0
    assert shell("compress", native, "-o", coarse, "--scale", 1).status == 0
    assert fine.stat().st_size > coarse.stat().st_size
    assert "lattice" in shell("compress", native, "-o", fine, "--scale", 1, "--bins", 8).error()
    assert "scale" in shell("compress", native, "-o", fine, "--scale", "wide").error()


def test_compact_lists_files_that_tell_no_step_and_ends_in_1(shell: Shell, store: Path) -> None:
    """Of a store with no whole file it said that all was well."""
    files = checkpoint_files(store)
    for file in files:
        file.write_bytes(file.read_bytes()[:100])
    told = shell("compact", store)
    assert told.status == 1
    assert [file.name for file in files if file.name not in told.err] == []
    assert len(shell("compact", store, "--json").json()["damaged"]) == len(files)
    assert checkpoint_files(store) == files


def test_compact_applies_the_retention_it_is_given(shell: Shell, store: Path) -> None:
    newest = CheckpointStore(store).load(30)["model"]["0.weight"]
    assert shell("compact", store, "--keep-last", 1).status == 0
    assert CheckpointStore(store).steps() == [30]
    assert torch.equal(CheckpointStore(store).load()["model"]["0.weight"], newest)


def test_compress_and_decompress(shell: Shell, native: Path, tmp_path: Path) -> None:
    packed, out = tmp_path / "model.dq", tmp_path / "again.pt"
    told = shell("compress", native, "-o", packed, "--bins", 32, "--json")
    assert told.status == 0
    assert told.json()["stored_bytes"] == packed.stat().st_size
    assert packed.stat().st_size < native.stat().st_size
    assert shell("decompress", packed, "-o", out).status == 0
    again, original = torch.load(out, weights_only=True), training_state()
    weight, found = original["model"]["0.weight"], again["model"]["0.weight"]
    assert (weight - found).norm() / weight.norm() < 0.25
    assert again["step"] == 7


def test_compress_exact_is_bit_for_bit(shell: Shell, native: Path, tmp_path: Path) -> None:
    packed, out = tmp_path / "model.dq", tmp_path / "again.pt"
    words = ("--exact", "*", "--moments", "exact")
    assert shell("compress", native, "-o", packed, *words).status == 0
    assert shell("decompress", packed, "-o", out).status == 0
    again, original = torch.load(out, weights_only=True), training_state()
    assert torch.equal(again["model"]["0.weight"], original["model"]["0.weight"])
    moments = (state["optimizer"]["state"][0]["exp_avg"] for state in (again, original))
    assert torch.equal(*moments)


def test_dry_run_tells_the_sizes_and_writes_nothing(shell: Shell, native: Path, tmp_path: Path) -> None:
    told = shell("compress", native, "--dry-run", "--bins", 16, "--json").json()
    assert {"weight", "moment"} <= set(told["parts"])
    assert [path.name for path in tmp_path.iterdir()] == [native.name]
    shell("compress", native, "-o", tmp_path / "real.dq", "--bins", 16)
    assert told["stored_bytes"] == pytest.approx((tmp_path / "real.dq").stat().st_size, rel=0.02)
    table = shell("compress", native, "--dry-run").out
    assert "what would be saved" in table


@pytest.mark.parametrize(
    "words",
    [
        ("--bins", "1"),
        ("--bins", "many"),
        ("--prune", "1.5"),
        ("--moments", "7bit"),
        ("--method", "dynaquantt"),
    ],
)
def test_bad_settings_are_one_line(
    shell: Shell, native: Path, tmp_path: Path, words: tuple[str, str]
) -> None:
    outcome = shell("compress", native, "-o", tmp_path / "x.dq", *words)
    assert outcome.status == 1
    assert outcome.error()
    assert not (tmp_path / "x.dq").exists()


def test_method_options_reach_the_file(shell: Shell, native: Path, tmp_path: Path) -> None:
    packed = tmp_path / "paper.dq"
    words = ("--method", "dynaquant", "--method", "coder=paper")
    assert shell("compress", native, "-o", packed, *words).status == 0
    assert shell("show", packed, "--json").json()["options"]["coder"] == "paper"


def test_a_packed_file_can_be_looked_at(shell: Shell, native: Path, tmp_path: Path) -> None:
    packed = tmp_path / "model.dq"
    shell("compress", native, "-o", packed)
    for words in (("log", packed), ("show", packed, "--tensors"), ("verify", packed, "--deep")):
        assert shell(*words).status == 0
    assert shell("export", packed, "-o", tmp_path / "out.safetensors").status == 0


def test_nothing_is_written_over_what_it_is_made_of(shell: Shell, native: Path, store: Path) -> None:
    packed = native.with_suffix(".dq")
    assert shell("compress", native, "-o", packed).status == 0
    (checkpoint, *_) = checkpoint_files(store)
    kept = {path: path.read_bytes() for path in (native, packed, checkpoint)}
    link = native.with_name("link.pt")
    link.symlink_to(native)
    for words in (
        ("compress", native, "-o", native),
        ("compress", native, "-o", link),
        ("decompress", packed, "--to", "pt", "-o", packed),
        ("export", packed, "--to", "pt", "-o", packed),
        ("export", store, "--to", "pt", "-o", checkpoint),
        ("compress", native, "-o", checkpoint),
    ):
        outcome = shell(*words)
        assert outcome.status == 1
        assert "give another path" in outcome.error()
    assert {path: path.read_bytes() for path in kept} == kept


def test_a_delta_under_another_name_says_that_its_base_is_not_there(
    shell: Shell, store: Path, tmp_path: Path
) -> None:
    (tmp_path / "one").mkdir()
    delta = checkpoint_files(store)[1].rename(tmp_path / "one" / "best.dq")
    assert "step 10" in shell("export", delta, "-o", tmp_path / "a.pt").error()
    assert not (tmp_path / "a.pt").exists()
    for words in (("verify", delta), ("verify", delta, "--deep")):
        outcome = shell(*words)
        assert outcome.status == 1
        assert "step 10" in outcome.out
