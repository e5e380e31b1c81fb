"""Which checkpoint is the latest where files were removed, or native ones came after ours."""

import shutil

import pytest
from composer.core import Callback

from dynaquant_composer.folder import SHOWN
from tests.integrations.composer.kit import EXACT, fit, names, never_shown, ours, trainer


def ended(*callbacks, **options):
    fit(*callbacks, **options).close()


def point(folder, name):
    (folder / "latest-rank0.pt").unlink(missing_ok=True)
    (folder / "latest-rank0.pt").symlink_to(name)


def test_native_checkpoints_after_a_save_that_was_never_shown_are_newer(tmp_path):
    ended(ours(tmp_path, **EXACT), duration="6ba")
    never_shown(tmp_path / "ep0-ba6-rank0.pt")
    point(tmp_path, "ep0-ba3-rank0.pt")
    ended(save_folder=str(tmp_path), save_interval="5ba", autoresume=True, duration="10ba")
    again = trainer(ours(tmp_path, **EXACT), autoresume=True)
    assert int(again.state.timestamp.batch) == 10
    assert (tmp_path / "latest-rank0.pt").readlink().name == "ep1-ba10-rank0.pt"


def test_native_checkpoints_that_wrote_over_ours_and_were_rotated(tmp_path):
    ended(ours(tmp_path, **EXACT), duration="6ba")
    for mark in tmp_path.glob(f"*/{SHOWN}"):
        mark.unlink()  # as versions before the mark left it
    native = {"save_folder": str(tmp_path), "save_interval": "3ba", "save_overwrite": True}
    ended(save_num_checkpoints_to_keep=1, duration="9ba", seed=3, **native)
    again = trainer(ours(tmp_path, **EXACT), autoresume=True)
    assert int(again.state.timestamp.batch) == 9


@pytest.mark.parametrize("old", [False, True])
def test_a_checkpoint_whose_file_the_user_removed_does_not_come_back(tmp_path, old):
    ended(ours(tmp_path, **EXACT), duration="9ba")
    if old:
        for mark in tmp_path.glob(f"*/{SHOWN}"):
            mark.unlink()
        trainer(ours(tmp_path, **EXACT)).close()
    (tmp_path / "ep1-ba9-rank0.pt").unlink()
    again = trainer(ours(tmp_path, **EXACT), autoresume=True)
    assert int(again.state.timestamp.batch) == 6
    assert (tmp_path / "latest-rank0.pt").readlink().name == "ep0-ba6-rank0.pt"


def test_a_run_begins_anew_where_the_user_removed_all_files(tmp_path):
    ended(ours(tmp_path, **EXACT), duration="9ba")
    for file in tmp_path.glob("*.pt"):
        file.unlink()
    again = fit(ours(tmp_path, **EXACT), duration="4ba", autoresume=True)
    assert int(again.state.timestamp.batch) == 4
    assert [name for name in names(tmp_path) if name.endswith(".pt")] == [
        "ep0-ba3-rank0.pt",
        "ep0-ba4-rank0.pt",
        "latest-rank0.pt",
    ]


class Killed(Callback):
    """Ends the training when the save of six batches is committed and nobody has been told."""

    def __init__(self, saver):
        self.saver = saver

    def batch_checkpoint(self, state, logger):
        if int(state.timestamp.batch) == 6:
            self.saver._run._line.join()
            raise KeyboardInterrupt


def test_what_is_saved_again_under_a_removed_name_is_found_after_a_kill(tmp_path):
    ended(ours(tmp_path / "run", **EXACT), duration="6ba")
    for file in (tmp_path / "run").glob("*.pt"):
        file.unlink()
    saver = ours(tmp_path / "run", **EXACT)
    with pytest.raises(KeyboardInterrupt):
        fit(saver, Killed(saver), duration="9ba")
    left = shutil.copytree(tmp_path / "run", tmp_path / "left", symlinks=True)
    assert "ep0-ba6-rank0.pt" not in names(left)
    again = trainer(ours(left, **EXACT), autoresume=True)
    assert int(again.state.timestamp.batch) == 6


def test_saving_that_is_turned_off_changes_nothing_in_the_folder(tmp_path, monkeypatch):
    ended(ours(tmp_path, **EXACT), duration="6ba")
    before = sorted(tmp_path.rglob("*"))
    monkeypatch.setenv("DYNAQUANT_DISABLE", "1")
    ended(ours(tmp_path, overwrite=True, num_checkpoints_to_keep=1, **EXACT), duration="9ba")
    assert sorted(tmp_path.rglob("*")) == before
