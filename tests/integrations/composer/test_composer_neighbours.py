"""What else lies in the folder stays as it is, and what a kill has left is told from it."""

import shutil

import pytest
import torch

from dynaquant_composer.folder import REMOVING
from dynaquant_composer.names import Names
from dynaquant_composer.pointer import folder_of
from dynaquant_composer.sweeping import sweep
from dynaquant_core import CheckpointStore
from dynaquant_core.plugins.folder import PENDING
from dynaquant_core.store.lock import WriterLock
from tests.integrations.composer.kit import EXACT, fit, names, never_shown, ours, python, trainer

HOLD = """
import sys, pathlib
from dynaquant_core.store.lock import WriterLock
lock = WriterLock(pathlib.Path(sys.argv[1]))
lock.acquire(take_over=False)
print("held", flush=True)
sys.stdin.read()
"""


def keeping_one(folder):
    return ours(folder, num_checkpoints_to_keep=1, **EXACT)


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A run of six batches that nobody changes."""
    folder = tmp_path_factory.mktemp("saved") / "run"
    fit(ours(folder, **EXACT), duration="6ba")
    return folder


@pytest.fixture
def run(saved, tmp_path):
    shutil.copytree(saved, tmp_path / "run", symlinks=True)
    return tmp_path / "run"


def files(folder):
    return [name for name in names(folder) if name.endswith(".pt")]


@pytest.fixture
def original(tmp_path):
    """A run where it was trained: what it recorded of itself is true."""
    fit(ours(tmp_path / "original", **EXACT), duration="6ba")
    return tmp_path / "original"


def test_rotation_leaves_the_run_alone_whose_checkpoint_was_loaded(original, tmp_path):
    before = names(original)
    fit(keeping_one(tmp_path / "fork"), load_path=str(original / "latest-rank0.pt"), duration="9ba")
    assert names(original) == before
    assert files(tmp_path / "fork") == ["ep1-ba9-rank0.pt", "latest-rank0.pt"]


def test_rotation_goes_on_in_a_copy_and_not_in_the_original(original, tmp_path):
    before = names(original)
    copy = tmp_path / "copy"
    shutil.copytree(original, copy, symlinks=True)
    fit(keeping_one(copy), autoresume=True, duration="9ba")
    assert names(original) == before
    assert files(copy) == ["ep1-ba9-rank0.pt", "latest-rank0.pt"]


def test_stores_copies_and_unknown_folders_stay(run):
    CheckpointStore(run / "final.dynaquant").save(1, {"x": torch.ones(3)})
    copy = folder_of(run / "best")
    shutil.copytree(folder_of(run / "ep0-ba3-rank0.pt"), copy)
    nobodys = folder_of(run / "ep7-ba7-rank0.pt")
    nobodys.mkdir()
    (run / "ep0-ba3-rank0.pt").unlink()  # nothing says that a rotation did
    before = set(names(run))
    fit(ours(run, **EXACT), autoresume=True, duration="7ba")
    assert before <= set(names(run))


def test_what_a_rotation_had_marked_goes(run):
    file = run / "ep0-ba3-rank0.pt"
    (folder_of(file) / REMOVING).touch()
    sweep(Names(run, "ep{epoch}-ba{batch}-rank{rank}.pt", "digits"))
    assert folder_of(file).is_dir()  # the process died before the file was gone: it can still be loaded
    file.unlink()
    sweep(Names(run, "ep{epoch}-ba{batch}-rank{rank}.pt", "digits"))
    assert not folder_of(file).exists()


def test_a_link_moves_to_this_callbacks_own_checkpoints_only(run):
    weights = {"filename": "w{batch}.pt", "latest_filename": "lw.pt", "weights_only": True}
    mine = ours(run, "8ba", **weights, **EXACT)
    fit(ours(run, **EXACT), mine, autoresume=True, duration="8ba", eval_dataloader=None)
    never_shown(run / "w8.pt")
    assert folder_of(run / "w8.pt").is_dir()
    second = trainer(ours(run, **EXACT), ours(run, "2ba", **weights, **EXACT), autoresume=True)
    assert (run / "latest-rank0.pt").readlink().name == "ep1-ba8-rank0.pt"
    assert (run / "lw.pt").readlink().name == "w8.pt"
    assert int(second.state.timestamp.batch) == 8


def test_a_callback_of_the_same_names_and_another_link_finishes_its_own(run):
    never_shown(run / "ep0-ba6-rank0.pt")
    trainer(ours(run, latest_filename="other.pt", **EXACT))
    assert "other.pt" not in names(run)
    assert "ep0-ba6-rank0.pt" not in names(run)


def test_a_save_of_a_living_process_is_not_swept(run):
    for name in ("ep1-ba9-rank0.pt", "ep1-ba12-rank0.pt"):
        folder_of(run / name).mkdir()
        (folder_of(run / name) / PENDING).touch()
    living = folder_of(run / "ep1-ba9-rank0.pt")
    other = python("-c", HOLD, living, stdin=-1)
    assert other.stdout.readline() == "held\n"
    sweep(Names(run, "ep{epoch}-ba{batch}-rank{rank}.pt", "digits"))
    other.communicate("")
    assert (living / PENDING).exists()
    assert not folder_of(run / "ep1-ba12-rank0.pt").exists()
    lock = WriterLock(living)  # of this process
    lock.acquire(take_over=False)
    sweep(Names(run, "ep{epoch}-ba{batch}-rank{rank}.pt", "digits"))
    assert (living / PENDING).exists()
    lock.release()


def test_subfolders_are_looked_through(tmp_path):
    options = {"filename": "ep{epoch}/ba{batch}-rank{rank}.pt", **EXACT}
    fit(ours(tmp_path, **options), duration="3ba")
    never_shown(tmp_path / "ep0/ba3-rank0.pt")
    again = trainer(ours(tmp_path, **options), autoresume=True)
    assert int(again.state.timestamp.batch) == 3
    assert (tmp_path / "ep0/ba3-rank0.pt").is_file()
