"""What a user did, or raised, is not undone by what we add to it."""

import shutil
import time

import pytest
from lightning.pytorch.callbacks import ModelPruning
from torch import nn

from dynaquant_core.plugins import describe, read_tree
from dynaquant_core.plugins.line import Line
from dynaquant_lightning import DynaQuantCallback
from tests.integrations.lightning.kit import EXACT, Digits, fit, saves


@pytest.mark.parametrize("ours", [False, True])
def test_a_checkpoint_that_a_user_put_aside_is_nobody_s_to_remove(tmp_path, ours):
    def train(epochs, path=None):
        callbacks = [DynaQuantCallback(**EXACT)] if ours else []
        fit(tmp_path, saves(tmp_path), *callbacks, epochs=epochs, ckpt_path=path)

    train(1)
    kept = tmp_path / "kept.ckpt"
    (shutil.copytree if ours else shutil.copy)(tmp_path / "step=20.ckpt", kept)
    train(2, kept)
    train(3, tmp_path / "step=40.ckpt")
    assert kept.exists()


class Failing(Digits):
    def on_train_batch_start(self, batch, batch_idx):
        if self.global_step == 5:
            raise RuntimeError("mine")


def test_an_exception_of_the_training_is_not_hidden_by_a_disk_that_is_full(tmp_path, monkeypatch, caplog):
    def full(self, what, job, *ended):
        def fails():
            time.sleep(0.3)
            raise OSError(28, "No space left on device")

        put(self, what, fails, *ended)

    put = Line.put
    monkeypatch.setattr(Line, "put", full)
    keeper = saves(tmp_path, every_n_epochs=None, every_n_train_steps=5)
    with pytest.raises(RuntimeError, match="mine"):
        fit(tmp_path, keeper, DynaQuantCallback(**EXACT), model=Failing, epochs=1)
    assert "No space left" in caplog.text


class Versioned(nn.Linear):
    """A layer that turns what older versions of it saved around."""

    _version = 2

    def _load_from_state_dict(self, state, prefix, metadata, *rest):
        if metadata.get("version", 1) < 2:
            state[prefix + "weight"] = -state[prefix + "weight"]
        super()._load_from_state_dict(state, prefix, metadata, *rest)


class Migrates(Digits):
    def __init__(self):
        super().__init__()
        self.net[0] = Versioned(64, 48)


def test_versions_of_modules_come_back(tmp_path):
    model = fit(tmp_path, saves(tmp_path), DynaQuantCallback(**EXACT), model=Migrates, epochs=1)
    loaded = Migrates.load_from_checkpoint(tmp_path / "last.ckpt")
    assert loaded.net[0].weight.equal(model.lightning_module.net[0].weight)
    resumed = fit(
        tmp_path, DynaQuantCallback(**EXACT), model=Migrates, epochs=1, ckpt_path=tmp_path / "last.ckpt"
    )
    assert resumed.lightning_module.net[0].weight.equal(loaded.net[0].weight)


class Merged(Digits):
    """Saves its matrices as something else than they are while it trains, as merged adapters are."""

    def __init__(self):
        super().__init__(width=256)

    def on_save_checkpoint(self, checkpoint):
        state = checkpoint["state_dict"]
        checkpoint["state_dict"] = {
            name: 2 * value if value.dim() == 2 else value for name, value in state.items()
        }


def test_what_no_measure_can_see_is_kept_as_it_is(tmp_path):
    run = fit(tmp_path, saves(tmp_path), DynaQuantCallback(threshold=1e-4), model=Merged, epochs=2)
    info, state = describe(tmp_path / "last.ckpt"), read_tree(tmp_path / "last.ckpt")["state_dict"]
    assert info.evaluations > 0
    for layer in (0, 4):
        assert state[f"net.{layer}.weight"].equal(2 * run.lightning_module.net[layer].weight)


def test_a_state_that_is_copied_whole_is_kept_as_it_is_and_training_goes_on(tmp_path, caplog):
    prune = ModelPruning("l1_unstructured", amount=0.5)
    run = fit(
        tmp_path, prune, saves(tmp_path), DynaQuantCallback(), model=lambda: Digits(width=256), epochs=2
    )
    assert run.global_step == 40
    assert caplog.text.count("or copied by a hook") == 1
    weight = read_tree(tmp_path / "last.ckpt")["state_dict"]["net.0.weight"]
    assert weight.equal(run.lightning_module.net[0].weight)
    assert (weight == 0).float().mean() > 0.4
