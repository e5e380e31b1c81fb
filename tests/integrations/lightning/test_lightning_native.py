"""Joining in mid-run, leaving again, and everything that is not ours."""

import subprocess
import sys
from argparse import Namespace
from pathlib import Path

import pytest
import torch
from lightning.pytorch.plugins import AsyncCheckpointIO, TorchCheckpointIO
from lightning.pytorch.strategies import FSDPStrategy
from safetensors.torch import load_file

from dynaquant_core.errors import (
    ConfigError,
    CorruptFileError,
    DependencyError,
    NotAStoreError,
    StateMismatchError,
    StorageError,
    UnsafePathError,
    UnsupportedStateError,
)
from dynaquant_core.plugins import PluginOptions, PluginRun, describe, is_checkpoint, read_tree
from dynaquant_lightning import DynaQuantCallback, DynaQuantCheckpointIO, export, importer, versions
from tests.full_disk import files_of_at_most
from tests.integrations.lightning.kit import EXACT, Digits, bits, everything, fit, loaders, saves, trainer

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def ours(tmp_path_factory):
    """A run of two epochs with everything exact; tests must not change it."""
    folder = tmp_path_factory.mktemp("ours")
    fit(folder, saves(folder), DynaQuantCallback(**EXACT), epochs=2)
    return folder / "last.ckpt"


@pytest.fixture(scope="module")
def whole():
    """Four epochs without us."""
    return everything(fit("unused", epochs=4))


# -- joining and leaving -------------------------------------------------------------------------


def test_a_native_checkpoint_is_gone_on_from(tmp_path, whole):
    fit(tmp_path, saves(tmp_path, save_top_k=1), epochs=2)
    resumed = fit(tmp_path, saves(tmp_path), DynaQuantCallback(**EXACT), epochs=4, ckpt_path="last")
    assert everything(resumed) == whole
    assert describe(tmp_path / "last.ckpt").step == 80


def test_an_exported_checkpoint_is_gone_on_from_without_us(tmp_path, ours, whole):
    native = tmp_path / "native.ckpt"
    export(read_tree(ours), native)
    assert everything(fit(tmp_path, saves(tmp_path), epochs=4, ckpt_path=native)) == whole
    code = "import sys, lightning, torch; print(torch.load(sys.argv[1], weights_only=True)['global_step'])"
    done = subprocess.run([sys.executable, "-c", code, native], capture_output=True, text=True, check=True)
    assert done.stdout == "40\n"


def test_an_export_replaces_a_file_whole_or_not_at_all(tmp_path, ours):
    tree, older = read_tree(ours), tmp_path / "new" / "best.ckpt"
    export({"state_dict": {"weight": torch.ones(2)}}, older)
    before = older.read_bytes()
    with files_of_at_most(10_000), pytest.raises(StorageError, match=r"File too large; .*"):
        export(tree, older)
    assert older.read_bytes() == before
    assert list(older.parent.iterdir()) == [older]
    export(tree, older)
    assert torch.load(older, weights_only=True)["global_step"] == 40


def test_an_export_goes_nowhere_but_into_a_file(tmp_path, ours):
    from dynaquant_core import CheckpointStore

    tree = read_tree(ours)
    CheckpointStore(tmp_path / "store").save(1, {"weight": torch.ones(2)})
    (stored,) = (tmp_path / "store").glob("*.dq")
    before = stored.read_bytes()
    (tmp_path / "folder.ckpt").mkdir()
    with pytest.raises(UnsafePathError, match="is a folder"):
        export(tree, tmp_path / "folder.ckpt")
    with pytest.raises(UnsafePathError, match="checkpoint of a store"):
        export(tree, stored)
    assert list((tmp_path / "folder.ckpt").iterdir()) == []
    assert stored.read_bytes() == before
    export(tree, f"file://{tmp_path}/native.ckpt")
    assert torch.load(tmp_path / "native.ckpt", weights_only=True)["global_step"] == 40


def test_an_imported_checkpoint_is_a_folder_of_ours(tmp_path, whole):
    fit(tmp_path, saves(tmp_path, save_top_k=1), epochs=2)
    step, tree = importer(tmp_path / "last.ckpt")
    run = PluginRun(PluginOptions(**EXACT), framework="lightning")
    run.save(tmp_path / "joined.ckpt", step, tree)
    run.close()
    assert step == 40
    resumed = fit(
        tmp_path, saves(tmp_path), DynaQuantCallback(**EXACT), epochs=4, ckpt_path=tmp_path / "joined.ckpt"
    )
    assert everything(resumed) == whole


def test_the_commands_take_a_run_in_and_let_it_out_again(tmp_path, whole):
    from dynaquant_core.cli import main

    fit(tmp_path / "before", saves(tmp_path / "before", save_top_k=1), epochs=2)
    native, store, out = tmp_path / "before" / "last.ckpt", tmp_path / "store", tmp_path / "out.ckpt"
    assert main(["import", str(native), str(store), "--exact", "*", "--moments", "exact"]) == 0
    assert main(["export", str(store), "--to", "pt", "-o", str(out)]) == 0
    assert everything(fit(tmp_path, saves(tmp_path), epochs=4, ckpt_path=out)) == whole


@pytest.mark.parametrize(
    ("content", "error", "said"),
    [
        (None, StorageError, "No such file"),
        (b"no zip file", CorruptFileError, "expected a checkpoint of Lightning, found something else"),
        ({"weight": torch.ones(2)}, StateMismatchError, "no checkpoint of a Lightning Trainer"),
        (
            {"state_dict": {"w": torch.ones(2)}},
            StateMismatchError,
            "steps under 'global_step'.* without --from",
        ),
        ({"state_dict": None, "global_step": 1}, StateMismatchError, "tensors by name under 'state_dict'"),
        ({"state_dict": {}, "global_step": None}, StateMismatchError, "steps under 'global_step'"),
        ({"state_dict": {}, "global_step": 1.5}, StateMismatchError, "steps under 'global_step'"),
    ],
)
def test_what_cannot_be_imported_says_so_in_one_line(tmp_path, content, error, said):
    path = tmp_path / "file.ckpt"
    if isinstance(content, bytes):
        path.write_bytes(content)
    elif content is not None:
        torch.save(content, path)
    with pytest.raises(error, match=said) as caught:
        importer(path)
    assert "\n" not in str(caught.value)


def test_hyper_parameters_of_any_class_are_imported_if_trusted(tmp_path, ours, capsys):
    """`save_hyperparameters()` keeps a parser's Namespace as it is."""
    from dynaquant_core.cli import main

    native, store, out = (str(tmp_path / name) for name in ("native.ckpt", "store", "out.ckpt"))
    tree = read_tree(ours)
    tree["hyper_parameters"] = {"width": 48, "args": Namespace(data="digits"), "tags": {"a"}}
    export(tree, native)
    with pytest.raises(UnsupportedStateError, match=r"holds a argparse\.Namespace, .*could run code"):
        importer(native)
    assert main(["import", native, store, "--from", "lightning"]) == 1
    said = capsys.readouterr().err
    assert "Namespace" in said
    assert "--trust" in said
    assert main(["import", native, store, "--from", "lightning", "--trust"]) == 0
    said = capsys.readouterr().err
    assert "hyper_parameters.args (argparse.Namespace)" in said
    assert "hyper_parameters.tags (builtins.set)" in said
    assert main(["export", store, "--to", "lightning", "-o", out]) == 0
    assert Digits.load_from_checkpoint(out).hparams == {"width": 48, "lr": 1e-2, "dropout": 0.0}


def test_what_is_no_training_state_is_not_exported(tmp_path):
    with pytest.raises(StateMismatchError, match="--to pt"):
        export({"weight": torch.ones(2)}, tmp_path / "file.ckpt")
    assert list(tmp_path.iterdir()) == []


def test_half_of_a_checkpoint_is_not_exported(tmp_path, ours):
    from dynaquant_core import CheckpointStore

    with pytest.raises(StateMismatchError, match="export the checkpoint's own folder"):
        export(CheckpointStore(ours).load(), tmp_path / "file.ckpt")


# -- paths ---------------------------------------------------------------------------------------


def test_a_wrong_path_is_an_error_of_the_framework(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"nowhere\.ckpt"):
        fit(tmp_path, DynaQuantCallback(), ckpt_path=tmp_path / "nowhere.ckpt")


def test_a_folder_of_something_else_says_what_is_missing(tmp_path):
    (tmp_path / "other.ckpt").mkdir()
    with pytest.raises(NotAStoreError, match=r"has no dynaquant\.json"):
        fit(tmp_path, DynaQuantCallback(), ckpt_path=tmp_path / "other.ckpt")


def test_a_folder_of_another_framework_names_it(tmp_path):
    run = PluginRun(PluginOptions(**EXACT), framework="transformers")
    run.save(tmp_path / "checkpoint-3", 3, {"model": {"weight": torch.ones(4, 4)}})
    run.close()
    with pytest.raises(NotAStoreError, match="is a checkpoint of transformers, not of Lightning"):
        fit(tmp_path, DynaQuantCallback(), ckpt_path=tmp_path / "checkpoint-3")
    with pytest.raises(NotAStoreError, match="transformers"):
        Digits.load_from_checkpoint(tmp_path / "checkpoint-3")


def test_a_damaged_folder_is_one_line(tmp_path):
    fit(tmp_path, saves(tmp_path), DynaQuantCallback(), epochs=1)
    (file,) = (tmp_path / "last.ckpt").glob("*.dq")
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 255
    file.write_bytes(data)
    with pytest.raises(CorruptFileError) as caught:
        fit(tmp_path, saves(tmp_path), DynaQuantCallback(), ckpt_path="last")
    assert "\n" not in str(caught.value)


def test_a_remote_path_is_refused(tmp_path):
    run = fit(tmp_path, DynaQuantCallback(), epochs=1)
    with pytest.raises(ConfigError, match="remote path"):
        run.save_checkpoint("memory://bucket/last.ckpt")


def test_storage_options_are_refused(tmp_path):
    run = fit(tmp_path, DynaQuantCallback(), epochs=1)
    with pytest.raises(ConfigError, match="storage_options"):
        run.save_checkpoint(tmp_path / "last.ckpt", storage_options={"key": 1})


# -- Trainers ------------------------------------------------------------------------------------


def test_sharded_strategies_are_refused(tmp_path):
    run = trainer(tmp_path, DynaQuantCallback())
    run.strategy.__class__ = FSDPStrategy
    with pytest.raises(ConfigError, match="FSDPStrategy writes its checkpoints itself"):
        run.callbacks[-1].setup(run, Digits(), "fit")


def test_a_checkpoint_io_of_another_kind_is_not_replaced(tmp_path):
    class Own(TorchCheckpointIO):
        pass

    with pytest.raises(ConfigError, match="already has the CheckpointIO Own"):
        fit(tmp_path, DynaQuantCallback(), plugins=[Own()])


@pytest.mark.parametrize("wrap", [lambda io: io, AsyncCheckpointIO], ids=["bare", "in a thread"])
def test_options_of_a_plugin_are_not_dropped_for_the_callback_s(tmp_path, wrap):
    plugins = [wrap(DynaQuantCheckpointIO(exact="*"))]
    with pytest.raises(ConfigError, match="give its options to DynaQuantCallback"):
        fit(tmp_path, saves(tmp_path), DynaQuantCallback(), epochs=1, plugins=plugins)
    assert not list(tmp_path.glob("*.ckpt"))


def test_lightning_s_thread_gives_way_to_ours(tmp_path):
    fit(tmp_path, saves(tmp_path), DynaQuantCallback(), epochs=1, plugins=[AsyncCheckpointIO()])
    assert is_checkpoint(tmp_path / "last.ckpt")


def test_the_plugin_alone_saves_and_resumes(tmp_path, whole):
    for epochs, path in ((2, None), (4, "last")):
        io = DynaQuantCheckpointIO(**EXACT)
        run = fit(tmp_path, saves(tmp_path), epochs=epochs, ckpt_path=path, plugins=[io])
    assert everything(run) == whole
    assert is_checkpoint(tmp_path / "last.ckpt")


# -- installations -------------------------------------------------------------------------------


def run_python(code, *arguments):
    command = [sys.executable, "-c", code, *map(str, arguments)]
    environment = {"PYTHONPATH": f"{ROOT}:{ROOT / 'integrations'}", "PATH": ""}
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


def test_without_lightning_the_import_says_what_to_install():
    code = "import sys; sys.modules['lightning'] = None; import dynaquant_lightning"
    done = run_python(code)
    assert done.stderr.splitlines()[-1].endswith(
        "needs Lightning; run in DynaQuant's own folder: python -m pip install '.[lightning]'"
    )


def test_a_lightning_that_lacks_what_is_needed_is_named(monkeypatch):
    monkeypatch.setattr(versions, "NEEDED", (*versions.NEEDED, ("lightning.pytorch", "Trainer.levitate")))
    with pytest.raises(
        DependencyError, match=r"has no lightning\.pytorch\.Trainer\.levitate.*known to work with"
    ):
        versions.require_lightning()


def test_a_lightning_of_another_release_is_remarked_on(monkeypatch, caplog):
    monkeypatch.setattr("lightning.__version__", "2.61.0")
    assert versions.require_lightning() == "2.61.0"
    assert "was not tested" in caplog.text


def test_what_is_wrapped_is_wrapped_once():
    import importlib

    from lightning.pytorch.callbacks import ModelCheckpoint
    from lightning.pytorch.core import saving

    import dynaquant_lightning

    before = saving.pl_load, ModelCheckpoint.file_exists
    importlib.reload(dynaquant_lightning)
    assert (saving.pl_load, ModelCheckpoint.file_exists) == before
    assert not hasattr(saving.pl_load.__wrapped__, "__wrapped__")


def test_native_files_load_as_ever(tmp_path):
    run = fit(tmp_path, saves(tmp_path, save_top_k=1), epochs=1)
    loaded = Digits.load_from_checkpoint(tmp_path / "last.ckpt")
    assert bits(loaded.state_dict()) == bits(run.lightning_module.state_dict())
    with (tmp_path / "last.ckpt").open("rb") as file:
        Digits.load_from_checkpoint(file)
    found = run.validate(Digits(), loaders()[1], ckpt_path=tmp_path / "last.ckpt", verbose=False)
    assert found[0]["val_loss"] == pytest.approx(float(run.callback_metrics["val_loss"]))


def test_weights_are_taken_out_as_safetensors(tmp_path, ours):
    from dynaquant_core.cli import main

    out = tmp_path / "weights.safetensors"
    assert main(["export", str(ours), "-o", str(out)]) == 0
    state, stored = read_tree(ours)["state_dict"], load_file(out)
    assert state
    for name, value in state.items():
        assert torch.equal(stored[f"state_dict.{name}"], value)
