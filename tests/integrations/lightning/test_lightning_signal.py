"""A checkpoint may be asked for at any moment: by a signal during a search, by a hook before or after all."""

import os
import shutil
import signal
import time

import pytest
import torch
from lightning.fabric import Fabric
from lightning.pytorch import Callback
from lightning.pytorch.callbacks import ModelCheckpoint
from torch.nn import functional

from dynaquant_core.plugins import describe, is_checkpoint, read_tree
from dynaquant_core.plugins.line import Line
from dynaquant_lightning import DynaQuantCallback, DynaQuantCheckpointIO
from tests.integrations.lightning.kit import EXACT, Digits, bits, digits, everything, fit, saves


@pytest.fixture
def on_signal():
    """Sets what SIGUSR1 does for one test."""
    before = signal.getsignal(signal.SIGUSR1)
    yield lambda handler: signal.signal(signal.SIGUSR1, lambda *_: handler())
    signal.signal(signal.SIGUSR1, before)


def test_a_signal_during_a_search_saves_the_model_and_no_candidate(tmp_path, on_signal):
    class Signalled(Digits):
        steps = 0

        def validation_step(self, batch, batch_idx):
            super().validation_step(batch, batch_idx)
            if self.trainer.validating and self.trainer.global_step == 20:
                Signalled.steps += 1
                if (
                    Signalled.steps == 11
                ):  # four are validated, one is tried, four measure the model: a candidate
                    signal.raise_signal(signal.SIGUSR1)

    model = Signalled()
    on_signal(lambda: model.trainer.save_checkpoint(tmp_path / "asked.ckpt"))
    keeper = saves(tmp_path, save_on_train_epoch_end=True, save_last=False)
    fit(tmp_path, keeper, DynaQuantCallback(threshold=0.5), model=model, epochs=1, limit_val_batches=4)
    saved, asked = (describe(tmp_path / name).quality for name in ("step=20.ckpt", "asked.ckpt"))
    assert Signalled.steps > 11
    assert asked["reference"] == saved["reference"]


def test_a_loop_of_fabric_can_be_signalled_too(tmp_path, on_signal):
    io = DynaQuantCheckpointIO(threshold=0.5)
    fabric = Fabric(accelerator="cpu", devices=1, plugins=[io])
    model = torch.nn.Linear(64, 10)
    model, optimizer = fabric.setup(model, torch.optim.AdamW(model.parameters()))
    state, calls = {"model": model, "optimizer": optimizer, "step": 1}, []
    images, labels = digits()[1].tensors

    def evaluate():
        calls.append(bits(model.state_dict()))
        if len(calls) == 2:
            signal.raise_signal(signal.SIGUSR1)
        return functional.cross_entropy(model(images), labels)

    on_signal(lambda: fabric.save(tmp_path / "asked.ckpt", state))
    io.watch(model, optimizer, evaluate=evaluate)
    fabric.save(tmp_path / "mine.ckpt", state)
    io.wait()
    assert calls[1] != calls[0]
    saved, asked = (describe(tmp_path / name).quality for name in ("mine.ckpt", "asked.ckpt"))
    assert asked["reference"] == saved["reference"]


def test_a_save_between_a_forward_pass_and_its_backward_pass_leaves_both(tmp_path):
    class Turned(Digits):
        """Its buffer is a factor, so the backward pass needs it as it was."""

        def __init__(self):
            super().__init__()
            self.register_buffer("table", torch.linspace(0.5, 1.5, 64))

        def forward(self, x):
            return super().forward((x + self.net[0].bias.mean()) * self.table)

    class Asks(Callback):
        def on_before_zero_grad(self, trainer, pl_module, optimizer):
            if trainer.global_step == 3:
                trainer.save_checkpoint(tmp_path / "asked.ckpt")

    ours = fit(tmp_path, Asks(), DynaQuantCallback(threshold=0.5), model=Turned, epochs=1)
    assert describe(tmp_path / "asked.ckpt").evaluations > 1
    assert everything(ours) == everything(fit(tmp_path / "plain", model=Turned, epochs=1))


@pytest.fixture
def slow(monkeypatch):
    """A disk on which every job in the background begins late."""
    put = Line.put
    monkeypatch.setattr(
        Line, "put", lambda self, what, job, *ended: put(self, what, lambda: (time.sleep(0.3), job()), *ended)
    )


@pytest.mark.parametrize("hook", ["on_fit_start", "on_train_epoch_end", "on_fit_end", "teardown"])
@pytest.mark.usefixtures("slow")
def test_a_save_of_a_hook_is_there_when_it_returns(tmp_path, hook):
    """Whoever asked for it may remove the one before right away, and the process may be killed then."""
    found = []

    def save(self, trainer, *_, **__):
        trainer.save_checkpoint(tmp_path / "asked.ckpt")
        found.append(is_checkpoint(tmp_path / "asked.ckpt"))

    fit(tmp_path, DynaQuantCallback(**EXACT), type("Asks", (Callback,), {hook: save})(), epochs=1)
    assert found == [True]


@pytest.mark.usefixtures("slow")
def test_a_save_of_fabric_is_there_when_it_returns(tmp_path):
    fabric = Fabric(accelerator="cpu", devices=1, plugins=[DynaQuantCheckpointIO(**EXACT)])
    for step in (1, 2):
        fabric.save(tmp_path / "last.ckpt", {"weight": torch.full((4, 4), float(step)), "step": step})
        assert read_tree(tmp_path / "last.ckpt")["step"] == step


@pytest.mark.usefixtures("slow")
def test_a_save_whose_asker_removes_the_one_before_by_itself_is_there_first(tmp_path):
    """Our line orders the removals of Lightning's own ModelCheckpoint, not those of a class of the user's."""
    found = []

    class Sweeps(ModelCheckpoint):
        def _remove_checkpoint(self, trainer, filepath):
            found.append(is_checkpoint(self.best_model_path))
            shutil.rmtree(filepath)

    fit(tmp_path, Sweeps(tmp_path), DynaQuantCallback(**EXACT), epochs=3)
    assert found == [True, True]


@pytest.mark.usefixtures("slow")
def test_a_forked_child_reads_what_its_parent_is_writing(tmp_path):
    """A callback that evaluates the newest checkpoint in a process of its own while training goes on."""
    found, keeper = [], saves(tmp_path, every_n_epochs=None, every_n_train_steps=5)

    class Child(Callback):
        def on_train_batch_start(self, trainer, *_):
            if trainer.global_step != 5:
                return
            assert not is_checkpoint(keeper.best_model_path)
            child = os.fork()
            if child == 0:
                status = 1
                try:
                    Digits.load_from_checkpoint(keeper.best_model_path)
                    status = 0
                finally:
                    os._exit(status)
            found.append(child)

    fit(tmp_path, keeper, Child(), DynaQuantCallback(**EXACT), epochs=1)
    assert os.waitstatus_to_exitcode(os.waitpid(found[0], 0)[1]) == 0
