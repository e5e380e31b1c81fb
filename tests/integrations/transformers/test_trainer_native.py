"""Joining in mid-run and leaving: from and to the Trainer's own files."""

import json
import logging
import shutil
import warnings
from argparse import Namespace

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import GPT2LMHeadModel

from dynaquant_core import Checkpointer, CheckpointStore
from dynaquant_core.cli import main
from dynaquant_core.errors import (
    CorruptFileError,
    NotAStoreError,
    StateMismatchError,
    StorageError,
    UnsafePathError,
)
from dynaquant_core.plugins import MARKER, PluginOptions, PluginRun, read_tree
from dynaquant_transformers import DynaQuantCallback, export, importer
from tests.full_disk import files_of_at_most
from tests.integrations.transformers.kit import EXACT, bits, everything, gpt, names, trainer


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A native training, one of ours, and the folder of both."""
    folder = tmp_path_factory.mktemp("run")
    native = trainer(folder / "native")
    native.train()
    ours = trainer(folder / "ours", DynaQuantCallback(**EXACT))
    ours.train()
    return native, folder


def test_an_exported_checkpoint_is_resumed_without_us(run, tmp_path):
    native, folder = run
    source = folder / "ours" / "checkpoint-4"
    export(read_tree(source), tmp_path / "left", source)
    assert names(tmp_path / "left") == names(folder / "native" / "checkpoint-4")
    again = trainer(tmp_path / "again", model=gpt(seed=9))
    again.train(resume_from_checkpoint=str(tmp_path / "left"))
    assert everything(again) == everything(native)
    loaded = GPT2LMHeadModel.from_pretrained(tmp_path / "left")
    stored = read_tree(source)["model"]
    assert bits(dict(loaded.state_dict())) == bits(stored)


def test_without_its_folder_weights_and_optimizer_are_exported(run, tmp_path, caplog):
    tree = read_tree(run[1] / "ours" / "checkpoint-8")
    with caplog.at_level(logging.WARNING):
        export(tree, tmp_path / "out")
    assert names(tmp_path / "out") == {"model.safetensors", "optimizer.pt"}
    assert "copy the checkpoint's other files" in caplog.text


def test_an_export_leaves_the_whole_folder_or_none(run, tmp_path):
    """An older export would mix with this one, and a part of this one would pass for a checkpoint."""
    source = run[1] / "ours" / "checkpoint-4"
    tree = read_tree(source)
    weights = sum(tensor.nbytes for tensor in tree["model"].values())
    for most in (weights // 2, weights + 20_000):  # while weights are written, and the optimizer after them
        with files_of_at_most(most), pytest.raises(StorageError, match="File too large"):
            export(tree, tmp_path / "out", source)
        assert names(tmp_path) == set()
    (tmp_path / "out").mkdir()
    export(tree, tmp_path / "out", source)
    before = everything_in(tmp_path / "out")
    with pytest.raises(UnsafePathError, match="a folder with files in it"):
        export({"model": {"weight": torch.ones(2)}}, tmp_path / "out")
    with pytest.raises(UnsafePathError, match="found a file"):
        export(tree, tmp_path / "out" / "config.json", source)
    assert everything_in(tmp_path / "out") == before
    assert names(tmp_path) == {"out"}


def everything_in(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_a_checkpoint_is_exported_into_its_own_folder(run, tmp_path):
    source = shutil.copytree(run[1] / "ours" / "checkpoint-4", tmp_path / "checkpoint-4")
    export(read_tree(source), source / "native", source)
    assert names(source / "native") == names(run[1] / "native" / "checkpoint-4")


def test_a_folder_that_was_saved_over_natively_is_not_exported(run, tmp_path):
    """Stored weights would meet the scheduler and state of another training."""
    source = shutil.copytree(run[1] / "ours" / "checkpoint-4", tmp_path / "checkpoint-4")
    tree = read_tree(source)
    shutil.copytree(run[1] / "native" / "checkpoint-4", source, dirs_exist_ok=True)
    with pytest.raises(NotAStoreError, match="saved natively into"):
        export(tree, tmp_path / "out", source)
    assert names(tmp_path) == {"checkpoint-4"}


@pytest.mark.parametrize("given", [{}, {"save_only_model": True}])
def test_the_commands_tell_a_folder_that_was_saved_over_natively(run, tmp_path, capsys, given):
    source = shutil.copytree(run[1] / "ours" / "checkpoint-4", tmp_path / "ours" / "checkpoint-4")
    for words in (["log", "ours"], ["verify", "ours"], ["export", "ours", "--to", "hf", "-o", "good"]):
        assert main(at(tmp_path, words)) == 0
    assert "natively" not in "".join(capsys.readouterr())
    trainer(tmp_path / "ours", max_steps=4, save_steps=4, **given).train()
    for path in ("ours", "ours/checkpoint-4"):
        capsys.readouterr()
        assert main(at(tmp_path, ["log", path])) == 0
        assert "saved natively over" in capsys.readouterr().err
        assert main(at(tmp_path, ["verify", path])) == 1
        for name in ("out", "out.pt"):
            assert (
                main(at(tmp_path, ["export", path, "--to", "pt" if "." in name else "hf", "-o", name])) == 1
            )
            assert "saved natively over" in capsys.readouterr().err
    assert names(tmp_path) == {"ours", "good"}
    (newest,) = source.glob("*-seq-000002.dq")
    assert main(["export", str(newest), "-o", str(tmp_path / "old.pt")]) == 0


def at(folder, words):
    """The words of a command with paths below a folder."""
    return [str(folder / word) if word[:3] in {"our", "goo", "out"} else word for word in words]


def test_what_is_no_checkpoint_of_the_trainer_is_not_exported(tmp_path):
    weights = {"weight": torch.ones(8, 8)}
    run = PluginRun(PluginOptions(**EXACT), framework="accelerate")
    run.save(tmp_path / "checkpoint_1", 1, {"model": weights, "optimizer": [{}], "files": ["model_0"]})
    run.close()
    tree = read_tree(tmp_path / "checkpoint_1")
    with pytest.raises(StateMismatchError, match="is a checkpoint of accelerate, not of the Trainer"):
        export(tree, tmp_path / "out", tmp_path / "checkpoint_1")
    with pytest.raises(StateMismatchError, match="expected the state of one optimizer"):
        export(tree, tmp_path / "out")
    with pytest.raises(StateMismatchError, match="several models"):
        export({"model": {"generator": weights, "critic": weights}}, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_weights_of_a_plain_training_are_exported_without_its_optimizer(tmp_path, caplog):
    model = torch.nn.Linear(8, 8)
    optimizer = torch.optim.AdamW(model.parameters())
    with Checkpointer(tmp_path / "store", model, optimizer, every=1, **EXACT) as checkpointer:
        model(torch.ones(8)).sum().backward()
        optimizer.step()
        checkpointer.step()
    export(CheckpointStore(tmp_path / "store").load(), tmp_path / "out")
    assert names(tmp_path / "out") == {"model.safetensors"}
    assert bits(load_file(tmp_path / "out" / "model.safetensors")) == bits(dict(model.state_dict()))
    assert "gets no optimizer" in caplog.text


def test_exported_adapters(tmp_path):
    peft = pytest.importorskip("peft", reason="peft is not installed in this environment")

    def model(seed):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # of peft, about transformers
            base = gpt()
            torch.manual_seed(seed)
            config = peft.LoraConfig(task_type="CAUSAL_LM", target_modules=["c_attn"], fan_in_fan_out=True)
            return peft.get_peft_model(base, config)

    whole = trainer(tmp_path / "whole", model=model(0))
    whole.train()
    trainer(tmp_path / "ours", DynaQuantCallback(**EXACT), model=model(0)).train()
    source = tmp_path / "ours" / "checkpoint-4"
    export(read_tree(source), tmp_path / "left", source)
    again = trainer(tmp_path / "again", model=model(1))
    again.train(resume_from_checkpoint=str(tmp_path / "left"))
    assert everything(again) == everything(whole)


def test_a_native_checkpoint_goes_into_a_store(run, tmp_path):
    step, tree = importer(run[1] / "native" / "checkpoint-6")
    store = CheckpointStore(tmp_path, exact=("*",), moments="exact")
    store.save(step, tree)
    stored = store.load(6)
    ours = read_tree(run[1] / "ours" / "checkpoint-6")
    assert bits(stored["optimizer"]) == bits(ours["optimizer"])
    shared = set(stored["model"]) & set(ours["model"])
    assert {name: bits(stored["model"][name]) for name in shared} == {
        name: bits(ours["model"][name]) for name in shared
    }
    assert set(ours["model"]) - shared == {"lm_head.weight"}, "tied, so that native files leave it out"


@pytest.mark.parametrize("largest", ["1GB", "40KB"], ids=["whole", "in parts"])
def test_a_models_folder_goes_into_a_store(tmp_path, monkeypatch, capsys, largest):
    """`save_pretrained` writes no state of a Trainer, and so no step."""
    monkeypatch.chdir(tmp_path)
    model = gpt()
    model.save_pretrained("model", max_shard_size=largest)
    assert main(["import", "model", "first", "--from", "hf", "--exact", "*"]) == 0
    assert main(["import", "model", "later", "--from", "hf", "--exact", "*", "--step", "7"]) == 0
    stored = CheckpointStore("first").load(0)["model"]
    assert stored
    assert bits(stored) == {name: bits(model.state_dict()[name]) for name in stored}
    assert CheckpointStore("later").steps() == [7]
    capsys.readouterr()
    assert main(["export", "first", "--to", "hf", "-o", "out"]) == 0
    assert "warning: out holds weights only; copy" in capsys.readouterr().err
    assert main(["compress", "model", "-o", "out.dq"]) == 1
    assert "`dynaquant import FOLDER STORE --from hf`" in capsys.readouterr().err


def in_parts(folder):
    """Makes a model's folder in parts; which tensor lies in which."""
    gpt().save_pretrained(folder, max_shard_size="40KB")
    return json.loads((folder / "model.safetensors.index.json").read_text())["weight_map"]


def test_a_model_in_parts_is_taken_whole_or_not_at_all(tmp_path):
    """A part of another model, or of a download that was repeated: weights were lost without a word."""
    places = in_parts(tmp_path)
    first, *_, last = sorted(set(places.values()))
    lost = [name for name, part in places.items() if part == last]
    shutil.copy(tmp_path / first, tmp_path / last)
    with pytest.raises(CorruptFileError, match=rf"{lost[0]}.*copy the folder again"):
        importer(tmp_path)


def test_of_two_parts_with_one_tensor_the_index_says_which(tmp_path):
    first, *_, last = sorted(set(in_parts(tmp_path).values()))
    own = load_file(tmp_path / first)
    stale = {name: torch.zeros_like(value) for name, value in own.items()}
    save_file(load_file(tmp_path / last) | stale, tmp_path / last)
    _, tree = importer(tmp_path)
    assert {name: bits(tree["model"][name]) for name in own} == bits(own)


@pytest.mark.parametrize(
    "said",
    [
        [],
        {"metadata": {}},
        {"weight_map": {}},
        {"weight_map": {"w": 3}},
        {"weight_map": {"w": "../model.safetensors"}},
        {"weight_map": {"w": "model.safetensors.index.json"}},
    ],
)
def test_an_index_that_is_none_is_a_damaged_file(tmp_path, monkeypatch, capsys, said):
    """It was called a bug, or a model without weights."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(said))
    assert main(["import", ".", "store", "--from", "hf"]) == 1
    error = capsys.readouterr().err
    assert "model.safetensors.index.json" in error
    assert "copy the folder again" in error
    assert "bug" not in error


def test_what_may_run_code_is_read_where_it_is_trusted(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    weights = torch.ones(3)
    torch.save({"w": weights, "args": Namespace(lr=0.1)}, "pytorch_model.bin")
    assert main(["import", ".", "store", "--from", "hf"]) == 1
    error = capsys.readouterr().err
    assert "argparse.Namespace" in error
    assert "--trust" in error
    assert main(["import", ".", "store", "--from", "hf", "--trust"]) == 0
    assert "model.args (argparse.Namespace)" in capsys.readouterr().err
    assert bits(CheckpointStore("store").load(0)) == bits({"model": {"w": weights}})


def test_what_cannot_be_imported_or_exported(run, tmp_path):
    with pytest.raises(NotAStoreError, match="already"):
        importer(run[1] / "ours" / "checkpoint-8")
    with pytest.raises(NotAStoreError, match="holds no weights"):
        importer(tmp_path / "nowhere")
    (tmp_path / "model.safetensors").write_bytes(b"nonsense")
    with pytest.raises(CorruptFileError, match="not a whole safetensors file"):
        importer(tmp_path)
    with pytest.raises(StateMismatchError, match="not a checkpoint of the Trainer"):
        export({"state": {}}, tmp_path / "out")
    (tmp_path / "model.safetensors").unlink()
    (tmp_path / "pytorch_model.bin").write_bytes(b"nonsense")
    with pytest.raises(CorruptFileError, match=r"torch\.save"):
        importer(tmp_path)
    torch.save([torch.ones(3)], tmp_path / "pytorch_model.bin")
    with pytest.raises(CorruptFileError, match="expected tensors by name, found a list"):
        importer(tmp_path)
    torch.save({}, tmp_path / "pytorch_model.bin")
    for told in ("{}", "[]", '{"global_step": true}'):
        (tmp_path / "trainer_state.json").write_text(told)
        with pytest.raises(CorruptFileError, match="tells no global_step"):
            importer(tmp_path)
    assert MARKER not in names(tmp_path)
