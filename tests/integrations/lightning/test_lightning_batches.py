"""Batches that the search keeps: a step may work on them in place, and finds them as they were."""

from dataclasses import dataclass
from pathlib import Path
from threading import Lock

import pytest
import torch
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

from dynaquant_core.plugins import describe
from dynaquant_lightning import DynaQuantCallback
from dynaquant_lightning.batches import Batch
from tests.integrations.lightning.kit import Digits, digits, fit, loaders, saves, trainer


class Pixels(Digits):
    """Is given pixels of 0 to 16 and scales what it validates on, in place or not."""

    def __init__(self, where):
        super().__init__()
        self.where = where

    def training_step(self, batch, batch_idx):
        return functional.cross_entropy(self(batch[0] / 16), batch[1])

    def on_before_batch_transfer(self, batch, dataloader_idx):
        return self.scaled(batch, "before")

    def on_after_batch_transfer(self, batch, dataloader_idx):
        return self.scaled(batch, "after")

    def validation_step(self, batch, batch_idx):
        batch = self.scaled(batch, "step")
        if isinstance(batch, dict):
            batch = batch.pop("rows")
        images = batch[0] / 16 if self.where == "nowhere" else batch[0]
        self.log("val_loss", functional.cross_entropy(self(images), batch[1]), batch_size=len(images))

    def scaled(self, batch, here):
        if self.where == here and not self.trainer.training:
            (batch["rows"] if isinstance(batch, dict) else batch)[0].div_(16)
        return batch


@dataclass
class Hidden:
    """A batch whose tensors are seen by nobody who does not know it."""

    _rows: list

    def __getitem__(self, number):
        return self._rows[number]


@pytest.mark.parametrize(
    ("where", "kind"),
    [
        ("step", list),
        ("before", list),
        ("after", list),
        ("step", Hidden),
        ("step", lambda rows: {"rows": rows}),
    ],
)
def test_a_step_that_works_on_its_batch_in_place_measures_as_one_that_does_not(tmp_path, where, kind):
    def collate(rows):
        return kind([torch.stack(part) for part in zip(*rows, strict=True)])

    def train(folder, where):
        (images, labels), (held, answers) = (half.tensors for half in digits())
        data = (
            DataLoader(TensorDataset(16 * images, labels), 64),
            DataLoader(TensorDataset(16 * held, answers), 128, collate_fn=collate),
        )
        callback = DynaQuantCallback(threshold=0.02)
        fit(folder, saves(folder), callback, model=lambda: Pixels(where), data=data, epochs=3)
        infos = [describe(path) for path in sorted(Path(folder).glob("step*.ckpt"))]
        return [(info.quality["reference"], info.degradation, info.kind, info.config) for info in infos]

    assert train(tmp_path / "in place", where) == train(tmp_path / "not", "nowhere")


class InMemory:
    """A loader that gives the very batches it holds."""

    def __init__(self):
        images, labels = digits()[1].tensors
        self.batches = [(16 * images[:128], labels[:128]), (16 * images[128:256], labels[128:256])]

    def __iter__(self):
        return iter(self.batches)


def test_a_step_that_works_in_place_leaves_batches_that_lie_in_memory_as_they_are(tmp_path):
    held = InMemory()
    before = [part.clone() for batch in held.batches for part in batch]
    run = trainer(
        tmp_path,
        saves(tmp_path),
        DynaQuantCallback(),
        epochs=1,
        num_sanity_val_steps=0,
        check_val_every_n_epoch=9,
    )
    run.fit(Pixels("step"), loaders()[0], held)
    assert describe(tmp_path / "last.ckpt").evaluations > 1
    assert all(map(torch.equal, before, (part for batch in held.batches for part in batch)))


def test_a_copied_batch_shares_what_the_batch_shares_and_keeps_what_cannot_be_copied():
    whole, lock = torch.zeros(1000, 4), Lock()
    part = whole[:2]
    fresh = Batch({"a": part, "again": [part], "own": Hidden([part]), "lock": lock}, 0, None).copied()
    assert fresh["a"] is fresh["again"][0] is fresh["own"][0]
    assert fresh["lock"] is lock
    fresh["a"].fill_(1)
    assert not whole.any()
    assert fresh["a"].untyped_storage().nbytes() == 2 * 4 * 4, "not all that a view looks into"
