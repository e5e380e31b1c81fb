"""What a search leans on may fail, or be touched by it: training is the one without us all the same."""

import logging
import random

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, get_worker_info

from dynaquant_core.plugins import describe
from dynaquant_lightning import DynaQuantCallback
from tests.integrations.lightning.kit import Digits, digits, everything, fit, loaders, saves


def every_five(folder):
    return saves(folder, every_n_epochs=None, every_n_train_steps=5)


class Gathers(Digits):
    """Its `validation_step` leans on what a hook of the validation sets up."""

    def on_validation_epoch_start(self):
        self.outputs = []

    def validation_step(self, batch, batch_idx):
        self.outputs.append(batch_idx)
        super().validation_step(batch, batch_idx)


def test_a_step_that_needs_a_hook_is_searched_once_the_hook_has_run(tmp_path, caplog):
    options = {"model": Gathers, "epochs": 2, "num_sanity_val_steps": 0}
    with caplog.at_level(logging.WARNING):
        ours = fit(tmp_path, every_five(tmp_path), DynaQuantCallback(), **options)
    assert caplog.text.count("no search, as validation_step cannot be called on its own here") == 1
    assert describe(tmp_path / "step=15.ckpt").evaluations == 0
    assert describe(tmp_path / "step=25.ckpt").evaluations > 0
    assert everything(ours) == everything(fit(tmp_path / "plain", **options))


class InWorkers(Dataset):
    """Opened by its workers, as a file that a process cannot share."""

    def __init__(self):
        self.open = None

    def __len__(self):
        return 512

    def __getitem__(self, number):
        return self.open[number]


def open_it(_):
    get_worker_info().dataset.open = digits()[1]


def test_data_that_only_workers_can_read_are_not_searched_with(tmp_path, caplog):
    data = loaders()[0], DataLoader(InWorkers(), 128, num_workers=1, worker_init_fn=open_it)
    with caplog.at_level(logging.WARNING):
        run = fit(tmp_path, saves(tmp_path), DynaQuantCallback(), data=data, epochs=2)
    assert caplog.text.count("the validation data cannot be read in this process (TypeError") == 1
    assert describe(tmp_path / "last.ckpt").step == run.global_step == 40


class Places:
    """Validation batches that know where they stand."""

    def __init__(self):
        self.at, self.given = 0, []

    def __len__(self):
        return 32

    def __iter__(self):
        while self.at < len(self):
            self.at += 1
            self.given.append(self.at)
            yield digits()[1][16 * self.at - 16 : 16 * self.at]
        self.at = 0

    def state_dict(self):
        return {"at": self.at}

    def load_state_dict(self, state):
        self.at = state["at"]


def test_a_loader_that_knows_where_it_stands_is_put_back(tmp_path):
    data = Places()
    fit(
        tmp_path, every_five(tmp_path), DynaQuantCallback(), data=(loaders()[0], data), epochs=1,
        num_sanity_val_steps=0,
    )  # fmt: skip
    assert describe(tmp_path / "last.ckpt").evaluations > 0
    assert data.given == [*range(1, 17), *range(1, 33)]  # a search's, then the whole validation


class Draws(Digits):
    """Counts into an array and draws from generators of its own, in training too."""

    def __init__(self):
        super().__init__()
        self.hits, self.nested = np.zeros(6).reshape(2, 3), {"all": [np.zeros(2)]}
        self.drawn = [np.random.default_rng(0), np.random.RandomState(1), random.Random(2)]
        self.noise = torch.Generator().manual_seed(3)

    def training_step(self, batch, batch_idx):
        return super().training_step(batch, batch_idx) * (1 + self.drawn[0].random() + self.drawn[2].random())

    def validation_step(self, batch, batch_idx):
        self.hits += 1
        self.nested["all"][0][1] += 1
        self.drawn[0].random(), self.drawn[1].rand(), self.drawn[2].random()
        torch.rand(1, generator=self.noise)
        super().validation_step(batch, batch_idx)

    def kept(self):
        drawn = [self.drawn[0].random(), self.drawn[1].rand(), self.drawn[2].random()]
        return self.hits.tolist(), self.nested["all"][0].tolist(), drawn, self.noise.get_state().tolist()


@pytest.mark.parametrize("epochs", [1, 2])
def test_arrays_and_generators_of_the_module_are_put_back(tmp_path, epochs):
    def train(folder, *callbacks):
        run = fit(folder, every_five(folder), *callbacks, model=Draws, epochs=epochs)
        return everything(run), run.lightning_module.kept()

    assert train(tmp_path / "ours", DynaQuantCallback()) == train(tmp_path / "plain")
    assert describe(tmp_path / "ours" / "last.ckpt").evaluations > 0
