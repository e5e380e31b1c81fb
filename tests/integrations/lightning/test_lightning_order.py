"""What Lightning removes goes only when what replaces it is whole on disk."""

import threading

import pytest
from lightning.pytorch import Callback

from dynaquant_core.errors import SaveError
from dynaquant_core.plugins import describe, is_checkpoint
from dynaquant_core.plugins.line import Line
from dynaquant_lightning import DynaQuantCallback
from tests.integrations.lightning.kit import EXACT, fit, saves


@pytest.fixture
def hold(monkeypatch):
    """Every job in the background waits until it is set: a disk as slow as it likes."""
    gate, put = threading.Event(), Line.put
    monkeypatch.setattr(
        Line, "put", lambda self, what, job, *ended: put(self, what, lambda: (gate.wait(20), job()), *ended)
    )
    yield gate
    gate.set()


class Looks(Callback):
    """Notes whether a path is there in the batch after the first save."""

    def __init__(self, path, gate):
        self.path, self.gate, self.found = path, gate, None

    def on_train_batch_start(self, trainer, *_):
        if trainer.global_step % 20 == 6:
            self.found = self.path.exists()
            self.gate.set()


def best(folder, **options):
    """A ModelCheckpoint that keeps the newest of those it makes every five steps."""
    given = {"every_n_epochs": None, "every_n_train_steps": 5, "save_last": False, "monitor": "step"}
    return saves(folder, **given | {"mode": "max", "save_top_k": 1} | options)


def test_a_native_file_stays_until_what_replaces_it_is_whole(tmp_path, hold):
    native = fit(tmp_path, best(tmp_path), epochs=1)
    native.save_checkpoint(tmp_path / "start.ckpt")
    old = tmp_path / "step=20.ckpt"
    looks, ours = Looks(old, hold), best(tmp_path)
    fit(tmp_path, looks, ours, DynaQuantCallback(**EXACT), epochs=2, ckpt_path=tmp_path / "start.ckpt")
    assert looks.found is True
    assert not old.exists()
    assert describe(ours.best_model_path).step == 40


def test_weights_alone_of_an_earlier_run_stay_until_what_replaces_them_is_whole(tmp_path, hold):
    hold.set()
    keeper = saves(tmp_path, save_top_k=0)
    fit(tmp_path, best(tmp_path, save_weights_only=True), keeper, DynaQuantCallback(**EXACT), epochs=1)
    hold.clear()
    old = tmp_path / "step=20.ckpt"
    assert is_checkpoint(old)
    looks, again = Looks(old, hold), best(tmp_path, save_weights_only=True)
    fit(tmp_path, looks, again, DynaQuantCallback(**EXACT), epochs=2, ckpt_path=tmp_path / "last.ckpt")
    assert looks.found is True
    assert not old.exists()
    assert describe(again.best_model_path).step == 40


def test_a_native_file_stays_where_what_replaces_it_fails(tmp_path, monkeypatch):
    native = fit(tmp_path, best(tmp_path), epochs=1)
    native.save_checkpoint(tmp_path / "start.ckpt")

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("dynaquant_core.plugins.folder._touch", full)
    with pytest.raises(SaveError, match="No space left"):
        fit(tmp_path, best(tmp_path), DynaQuantCallback(), epochs=2, ckpt_path=tmp_path / "start.ckpt")
    assert (tmp_path / "step=20.ckpt").is_file()


def test_where_nothing_is_saved_nothing_is_removed(tmp_path, monkeypatch):
    native = fit(tmp_path, best(tmp_path), epochs=1)
    native.save_checkpoint(tmp_path / "start.ckpt")
    monkeypatch.setenv("DYNAQUANT_DISABLE", "1")
    fit(tmp_path, best(tmp_path), DynaQuantCallback(), epochs=2, ckpt_path=tmp_path / "start.ckpt")
    assert sorted(path.name for path in tmp_path.glob("*.ckpt")) == ["start.ckpt", "step=20.ckpt"]


class Spoils(Callback):
    """From the second save on its state cannot be pickled."""

    def on_save_checkpoint(self, trainer, pl_module, checkpoint):
        if trainer.global_step > 5:
            checkpoint["spoilt"] = lambda: None


def test_what_a_failed_save_should_replace_stays(tmp_path, caplog):
    options = {"epochs": 1, "limit_train_batches": 15}
    fit(tmp_path, Spoils(), best(tmp_path), DynaQuantCallback(on_error="warn", **EXACT), **options)
    assert [path.name for path in tmp_path.glob("*.ckpt")] == ["step=5.ckpt"]
    assert describe(tmp_path / "step=5.ckpt").step == 5
    assert "step=5.ckpt is not removed, as the save before it failed" in caplog.text
