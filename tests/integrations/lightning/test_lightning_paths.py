"""Paths, and loads, as users of native files have them."""

import threading

import pytest
from lightning.pytorch import Callback

from dynaquant_core.errors import SaveError
from dynaquant_core.plugins import describe, is_checkpoint
from dynaquant_core.plugins.line import Line
from dynaquant_lightning import DynaQuantCallback
from tests.integrations.lightning.kit import EXACT, Digits, bits, fit, saves


@pytest.mark.parametrize("spelled", ["~/mine.ckpt", "file://{home}/mine.ckpt"])
def test_homes_and_local_addresses_are_understood(tmp_path, monkeypatch, spelled):
    home, work = tmp_path / "home", tmp_path / "work"
    home.mkdir(), work.mkdir()
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.chdir(work)
    path = spelled.format(home=home)
    run = fit(tmp_path, DynaQuantCallback(**EXACT), epochs=1)
    run.save_checkpoint(path)
    assert is_checkpoint(home / "mine.ckpt")
    assert list(work.iterdir()) == []
    assert bits(Digits.load_from_checkpoint(path).state_dict()) == bits(run.lightning_module.state_dict())
    assert fit(tmp_path, DynaQuantCallback(**EXACT), epochs=2, ckpt_path=path).global_step == 40
    run.strategy.remove_checkpoint(path)
    assert not (home / "mine.ckpt").exists()


class LoadsBest(Callback):
    """Looks at the best checkpoint as soon as training is over, as one does before a test."""

    def __init__(self):
        self.found = None

    def on_train_end(self, trainer, pl_module):
        self.found = bits(
            Digits.load_from_checkpoint(trainer.checkpoint_callback.best_model_path).state_dict()
        )


def slow(monkeypatch, job=lambda job: job()):
    """Makes every job in the background take a while."""
    put, pause = Line.put, threading.Event()
    monkeypatch.setattr(
        Line,
        "put",
        lambda self, what, do, *ended: put(self, what, lambda: (pause.wait(0.3), job(do)), *ended),
    )


def test_a_checkpoint_on_its_way_can_be_loaded_from_a_hook(tmp_path, monkeypatch):
    slow(monkeypatch)
    loads = LoadsBest()
    run = fit(tmp_path, loads, saves(tmp_path, save_last=False), DynaQuantCallback(**EXACT), epochs=1)
    assert loads.found == bits(run.lightning_module.state_dict())


def test_hooks_after_ours_find_what_was_saved_when_training_is_over(tmp_path, monkeypatch):
    class Counts(Digits):
        def on_train_end(self):
            self.whole = is_checkpoint(self.trainer.checkpoint_callback.best_model_path)

    slow(monkeypatch)
    run = fit(tmp_path, saves(tmp_path), DynaQuantCallback(**EXACT), model=Counts, epochs=1)
    assert run.lightning_module.whole


def test_a_load_of_what_could_not_be_written_says_so(tmp_path, monkeypatch):
    def full(_):
        raise OSError(28, "No space left on device")

    slow(monkeypatch, full)
    with pytest.raises(SaveError, match="No space left"):
        fit(tmp_path, LoadsBest(), saves(tmp_path), DynaQuantCallback(**EXACT), epochs=1)


class Choice:
    """A hyperparameter of a class of its own."""


class Picky(Digits):
    def __init__(self, choice=None):
        super().__init__()
        self.save_hyperparameters()


def test_torch_s_own_switch_for_trusted_files_is_heeded(tmp_path, monkeypatch):
    monkeypatch.setenv("TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD", "1")
    fit(tmp_path, saves(tmp_path), DynaQuantCallback(**EXACT), model=lambda: Picky(Choice()), epochs=1)
    assert isinstance(Picky.load_from_checkpoint(tmp_path / "last.ckpt").hparams.choice, Choice)
    options = {"model": lambda: Picky(Choice()), "epochs": 2, "ckpt_path": "last"}
    fit(tmp_path, saves(tmp_path), DynaQuantCallback(**EXACT), **options)
    assert describe(tmp_path / "last.ckpt").step == 40
