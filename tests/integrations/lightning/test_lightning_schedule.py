import pytest
from lightning.pytorch import Callback
from lightning.pytorch.callbacks import ModelCheckpoint

from dynaquant_lightning import DynaQuantCallback
from dynaquant_lightning.schedule import steps_until_save
from tests.integrations.lightning.kit import EXACT, fit, saves


class Predicts(Callback):
    """Notes, before each batch, at which step the next save is expected."""

    def __init__(self):
        self.expected, self.saved = [], []

    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
        left = steps_until_save(trainer, batch_idx)
        self.expected.append(None if left is None else trainer.global_step + left)

    def on_save_checkpoint(self, trainer, pl_module, checkpoint):
        self.saved.append((len(self.expected), trainer.global_step))


SCHEDULES = {
    "steps": ({"every_n_epochs": None, "every_n_train_steps": 7}, {}),
    "epochs": ({"every_n_epochs": 1}, {}),
    "every second epoch": ({"every_n_epochs": 2}, {}),
    "after validations": ({"every_n_epochs": 1}, {"val_check_interval": 5}),
    "validations by steps": (
        {"every_n_epochs": 1},
        {"val_check_interval": 6, "check_val_every_n_epoch": None},
    ),
    "every third validation epoch": ({"every_n_epochs": 1}, {"check_val_every_n_epoch": 3}),
    "accumulated": ({"every_n_epochs": 1}, {"accumulate_grad_batches": 3}),
    "accumulated steps": (
        {"every_n_epochs": None, "every_n_train_steps": 3},
        {"accumulate_grad_batches": 4},
    ),
    "few batches": ({"every_n_epochs": 1}, {"limit_train_batches": 7}),
}


@pytest.mark.parametrize(("keeper", "options"), SCHEDULES.values(), ids=SCHEDULES)
def test_each_save_was_expected_at_its_step(tmp_path, keeper, options):
    says = Predicts()
    fit(tmp_path, says, saves(tmp_path, save_last=False, **keeper), epochs=6, **options)
    assert len(says.saved) > 1
    before = 0
    for batches, step in says.saved:
        assert set(says.expected[before:batches]) == {step}
        before = batches


def test_saves_by_time_are_not_foreseen(tmp_path):
    from datetime import timedelta

    says = Predicts()
    keeper = ModelCheckpoint(tmp_path, train_time_interval=timedelta(hours=1))
    fit(tmp_path, says, keeper, epochs=1)
    assert set(says.expected) == {None}


@pytest.mark.parametrize("accumulate", [1, 4])
def test_gradients_are_averaged_in_the_window_only(tmp_path, accumulate):
    """The collector must see steps 8, 9, 10 of every ten: those that are within three of a save."""
    seen = []

    class Watches(Callback):
        def on_before_zero_grad(self, trainer, pl_module, optimizer):
            run = callback.io.runs.of(moments=True)
            seen.append((trainer.global_step, run._watched._collector.recording))

    callback = DynaQuantCallback(window=3, **EXACT)
    keeper = saves(tmp_path, every_n_epochs=None, every_n_train_steps=10)
    options = {"accumulate_grad_batches": accumulate, "max_steps": 20}
    fit(tmp_path, callback, Watches(), keeper, epochs=-1, **options)
    recorded = {step + 1 for step, recording in seen if recording}
    assert recorded == {8, 9, 10, 18, 19, 20}
