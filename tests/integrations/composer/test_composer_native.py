"""Leaving and joining: native files loaded with us, ours exported and loaded without us."""

from argparse import Namespace

import pytest
import torch

from dynaquant_composer import export, importer
from dynaquant_composer.pointer import folder_of
from dynaquant_core import CheckpointStore
from dynaquant_core.cli import main
from dynaquant_core.errors import (
    CorruptFileError,
    StateMismatchError,
    StorageError,
    UnsafePathError,
    UnsupportedStateError,
)
from dynaquant_core.plugins import describe, read_tree
from tests.full_disk import files_of_at_most
from tests.integrations.composer.kit import EXACT, bits, everything, fit, ours, trainer


@pytest.fixture(scope="module")
def uninterrupted():
    return everything(fit())


def native(folder, **options):
    return {"save_folder": str(folder), "save_interval": "3ba"} | options


@pytest.mark.parametrize("how", ["load_path", "autoresume"])
def test_a_native_checkpoint_goes_on_with_us(tmp_path, uninterrupted, how):
    fit(duration="6ba", **native(tmp_path))
    given = {"load_path": str(tmp_path / "latest-rank0.pt")} if how == "load_path" else {"autoresume": True}
    run = trainer(ours(tmp_path, **EXACT), **given)
    assert int(run.state.timestamp.batch) == 6
    run.fit()
    assert everything(run) == uninterrupted
    assert describe(folder_of(tmp_path / "ep1-ba12-rank0.pt")).step == 12


def test_a_checkpoint_of_ours_goes_on_without_us(tmp_path, uninterrupted):
    fit(ours(tmp_path, **EXACT), duration="6ba")
    export(read_tree(folder_of(tmp_path / "ep0-ba6-rank0.pt"), weights_only=False), tmp_path / "native.pt")
    (tmp_path / "ep0-ba6-rank0.pt").unlink()
    run = trainer(load_path=str(tmp_path / "native.pt"), **native(tmp_path / "plain"))
    assert int(run.state.timestamp.batch) == 6
    run.fit()
    assert everything(run) == uninterrupted


def test_a_native_file_in_a_store_and_back(tmp_path):
    fit(duration="3ba", **native(tmp_path))
    step, tree = importer(tmp_path / "ep0-ba3-rank0.pt")
    assert step == 3
    store = CheckpointStore(tmp_path / "store", **EXACT)
    store.save(step, tree)
    export(store.load(), tmp_path / "back.pt")
    want = trainer(load_path=str(tmp_path / "latest-rank0.pt"))
    assert everything(trainer(load_path=str(tmp_path / "back.pt"))) == everything(want)


def test_what_is_no_checkpoint_of_composer(tmp_path):
    torch.save({"weights": torch.ones(2)}, tmp_path / "other.pt")
    (tmp_path / "text.pt").write_text("hello")
    with pytest.raises(StateMismatchError, match="no checkpoint of a Composer Trainer"):
        importer(tmp_path / "other.pt")
    with pytest.raises(CorruptFileError, match="expected a checkpoint of Composer, found something else"):
        importer(tmp_path / "text.pt")
    with pytest.raises(StorageError, match="cannot be read"):
        importer(tmp_path / "nowhere.pt")
    torch.save({"state": {"model": {}, "args": Namespace()}}, tmp_path / "objects.pt")
    with pytest.raises(UnsupportedStateError, match=r"holds a argparse\.Namespace, .*could run code"):
        importer(tmp_path / "objects.pt")
    assert importer(tmp_path / "objects.pt", weights_only=False)[1]["state"]["args"] == Namespace()
    with pytest.raises(StateMismatchError, match="--to pt"):
        export({"model": {}}, tmp_path / "new.pt")
    with pytest.raises(StorageError, match="check that the folder exists"):
        export({"state": {"model": {}}}, tmp_path / "nowhere" / "new.pt")


@pytest.mark.parametrize("timestamp", [None, 3, {}, {"Timestamp": []}, {"Timestamp": {"batch": "three"}}])
def test_a_file_that_does_not_tell_its_step_is_refused(tmp_path, timestamp):
    state = {"model": {"w": torch.ones(2)}, "metadata": None}
    torch.save({"state": state}, tmp_path / "weights.pt")
    assert importer(tmp_path / "weights.pt")[0] == 0
    torch.save({"state": state | {"timestamp": timestamp}}, tmp_path / "odd.pt")
    with pytest.raises(StateMismatchError, match="a whole number of batches"):
        importer(tmp_path / "odd.pt")


def test_an_export_replaces_a_file_whole_or_not_at_all(tmp_path):
    tree = {"state": {"model": {"weight": torch.ones(8192)}}}
    older = tmp_path / "native.pt"
    export({"state": {"model": {"weight": torch.ones(2)}}}, older)
    before = older.read_bytes()
    with files_of_at_most(10_000), pytest.raises(StorageError, match=r"File too large; .*"):
        export(tree, older)
    assert older.read_bytes() == before
    assert list(tmp_path.iterdir()) == [older]
    (tmp_path / "folder.pt").mkdir()
    with pytest.raises(UnsafePathError, match="is a folder"):
        export(tree, tmp_path / "folder.pt")
    CheckpointStore(tmp_path / "store").save(1, {"weight": torch.ones(2)})
    (stored,) = (tmp_path / "store").glob("*.dq")
    with pytest.raises(UnsafePathError, match="checkpoint of a store"):
        export(tree, stored)
    round_it = tmp_path / "round.pt"
    round_it.symlink_to("round.pt")
    export(tree, round_it)  # a link that leads nowhere is replaced as a file is
    assert round_it.is_file()


def test_a_checkpoint_of_ours_is_not_written_over(tmp_path):
    fit(ours(tmp_path, **EXACT), duration="3ba")
    file, latest = tmp_path / "ep0-ba3-rank0.pt", tmp_path / "latest-rank0.pt"
    before = file.read_bytes()
    tree = read_tree(folder_of(file), weights_only=False)
    for path in (file, latest):
        with pytest.raises(UnsafePathError, match="stands for the DynaQuant checkpoint"):
            export(tree, path)
    assert file.read_bytes() == before
    assert latest.is_symlink()


def test_an_average_of_an_algorithm_is_exported_too(tmp_path):
    from composer.algorithms import EMA

    run = fit(ours(tmp_path, **EXACT), duration="6ba", algorithms=[EMA(half_life="5ba")])
    export(read_tree(folder_of(tmp_path / "ep0-ba6-rank0.pt")), tmp_path / "native.pt")
    again = trainer(load_path=str(tmp_path / "native.pt"), algorithms=[EMA(half_life="5ba")])
    mine, theirs = (one.state.algorithms[0].state_dict()["ema_model"] for one in (again, run))
    assert bits(mine) == bits(theirs)


def test_the_commands_tell_a_checkpoint_that_was_saved_over_natively(tmp_path, capsys):
    fit(ours(tmp_path, **EXACT), duration="3ba")
    out = str(tmp_path / "out.pt")
    assert main(["verify", str(tmp_path)]) == main(["log", str(tmp_path)]) == 0
    capsys.readouterr()
    assert main(["log", str(tmp_path / "ep0-ba3-rank0.pt")]) == 0
    assert "ep0-ba3-rank0.pt.dynaquant" in capsys.readouterr().out
    assert "natively" not in "".join(capsys.readouterr())
    fit(duration="3ba", **native(tmp_path, save_overwrite=True))
    assert main(["log", str(tmp_path)]) == 0
    assert "saved natively over" in capsys.readouterr().err
    assert main(["verify", str(tmp_path)]) == main(["export", str(tmp_path), "--trust", "-o", out]) == 1
    assert "saved natively over" in capsys.readouterr().err
