"""A run that was killed in the middle of a save starts again with the same script."""

import pytest
from lightning.pytorch.callbacks import OnExceptionCheckpoint

from dynaquant_core.errors import NotAStoreError
from dynaquant_core.plugins import describe
from dynaquant_core.plugins.folder import PENDING
from dynaquant_core.store.names import checkpoint_name, temporary_name
from dynaquant_lightning import DynaQuantCallback
from tests.integrations.lightning.kit import EXACT, Digits, fit, saves


def unfinished(folder):
    """What SIGKILL leaves of the first save into a folder."""
    folder.mkdir(parents=True)
    (folder / PENDING).touch()
    (folder / temporary_name(checkpoint_name(7, 1))).write_bytes(b"half")


def test_a_kill_while_an_exception_is_saved_does_not_bar_the_next_start(tmp_path):
    fit(tmp_path, saves(tmp_path), DynaQuantCallback(**EXACT), epochs=1)
    unfinished(tmp_path / "on_exception.ckpt")
    again = OnExceptionCheckpoint(tmp_path), saves(tmp_path), DynaQuantCallback(**EXACT)
    assert fit(tmp_path, *again, epochs=2).global_step == 40
    assert describe(tmp_path / "last.ckpt").step == 40


def test_what_was_left_of_one_exception_s_save_takes_the_next_one(tmp_path):
    class Breaks(Digits):
        def on_train_batch_start(self, batch, batch_idx):
            if self.global_step == 7:
                raise RuntimeError("broken")

    unfinished(tmp_path / "on_exception.ckpt")
    with pytest.raises(RuntimeError, match="broken"):
        fit(tmp_path, OnExceptionCheckpoint(tmp_path), DynaQuantCallback(**EXACT), model=Breaks, epochs=1)
    resumed = fit(tmp_path, OnExceptionCheckpoint(tmp_path), DynaQuantCallback(**EXACT), epochs=1)
    assert resumed.global_step == 20


@pytest.mark.parametrize("whole", [None, 2])
def test_a_kill_while_a_cluster_s_signal_is_answered_does_not_bar_the_next_start(tmp_path, whole):
    run = fit(tmp_path, saves(tmp_path), DynaQuantCallback(**EXACT), epochs=1)
    for version in range(1, 3) if whole else ():
        run.save_checkpoint(tmp_path / f"hpc_ckpt_{version}.ckpt")
    unfinished(tmp_path / "hpc_ckpt_3.ckpt")
    path = run._checkpoint_connector._hpc_resume_path
    assert path == (str(tmp_path / "hpc_ckpt_2.ckpt") if whole else None)
    again = saves(tmp_path), DynaQuantCallback(**EXACT)
    if whole:
        assert fit(tmp_path, *again, epochs=2, ckpt_path="hpc").global_step == 40


def test_what_was_left_unfinished_and_is_named_says_so(tmp_path):
    unfinished(tmp_path / "mine.ckpt")
    with pytest.raises(NotAStoreError, match="its save was interrupted"):
        fit(tmp_path, DynaQuantCallback(), ckpt_path=tmp_path / "mine.ckpt")
