"""What a Lightning checkpoint may hold besides a model and one optimizer."""

import copy

import pytest
import torch
from lightning.pytorch import Callback, LightningDataModule
from lightning.pytorch.callbacks import EMAWeightAveraging
from lightning.pytorch.plugins import MixedPrecision
from torch import nn
from torch.nn import functional

from dynaquant_core.errors import UnsupportedStateError
from dynaquant_core.plugins import describe, read_tree
from dynaquant_lightning import DynaQuantCallback
from tests.integrations.lightning.kit import EXACT, Digits, bits, everything, fit, loaders, saves, trainer


def halves(tmp_path, *, model=Digits, callbacks=lambda: (), data=loaders, **options):
    """Two runs of two epochs with everything exact, and one of four; all that they are."""
    seen = []
    for folder, epochs, path in (("cut", 2, None), ("cut", 4, "last"), ("whole", 4, None)):
        keeper, ours = saves(tmp_path / folder), DynaQuantCallback(**EXACT)
        run = fit(
            tmp_path / folder, *callbacks(), keeper, ours, model=model, data=data(), epochs=epochs,
            ckpt_path=path, **options,
        )  # fmt: skip
        seen.append(run)
    return seen[1:]


def test_an_average_of_the_weights_is_compressed_and_comes_back(tmp_path):
    def average():
        return (EMAWeightAveraging(decay=0.9),)

    resumed, whole = halves(tmp_path, callbacks=average)
    assert everything(resumed) == everything(whole)
    wide = lambda: Digits(width=256)  # noqa: E731
    fit(tmp_path / "lossy", *average(), saves(tmp_path / "lossy"), DynaQuantCallback(), model=wide, epochs=2)
    tree, info = read_tree(tmp_path / "lossy" / "last.ckpt"), describe(tmp_path / "lossy" / "last.ckpt")
    weights = info.parts["weight"]
    assert weights["raw_bytes"] > 2 * 4 * 64 * 256
    assert weights["stored_bytes"] * 3 < weights["raw_bytes"]
    assert not torch.equal(tree["state_dict"]["net.0.weight"], tree["current_model_state"]["net.0.weight"])


def test_tied_weights_stay_tied(tmp_path):
    class Tied(Digits):
        def __init__(self):
            super().__init__()
            self.net = nn.Sequential(nn.Linear(64, 64, bias=False), nn.ReLU(), nn.Linear(64, 64, bias=False))
            self.net[2].weight = self.net[0].weight

    resumed, whole = halves(tmp_path, model=Tied)
    assert everything(resumed) == everything(whole)
    tree = read_tree(tmp_path / "cut" / "last.ckpt")["state_dict"]
    assert tree["net.0.weight"].data_ptr() == tree["net.2.weight"].data_ptr()


class Unlogged(Digits):
    """Returns its losses; Lightning's own `log` cannot be compiled."""

    def training_step(self, batch, batch_idx):
        return functional.cross_entropy(self(batch[0]), batch[1])

    validation_step = training_step


class PartCompiled(Digits):
    """Its network is compiled, which puts a prefix into every name."""

    def __init__(self):
        super().__init__()
        self.net = torch.compile(self.net, backend="eager")


@pytest.mark.parametrize("make", [PartCompiled, lambda: torch.compile(Unlogged(), backend="eager")])
def test_compiled_models(tmp_path, make):
    resumed, whole = halves(tmp_path, model=make)
    assert everything(resumed) == everything(whole)
    fit(tmp_path / "lossy", saves(tmp_path / "lossy"), DynaQuantCallback(), model=make, epochs=1)
    assert describe(tmp_path / "lossy" / "last.ckpt").met


def test_mixed_precision_with_a_gradient_scaler(tmp_path):
    def plugins():
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**30, growth_interval=5)
        return [MixedPrecision("16-mixed", "cpu", scaler)]

    resumed, whole = (
        fit(
            tmp_path / folder,
            saves(tmp_path / folder),
            DynaQuantCallback(**EXACT),
            epochs=epochs,
            plugins=plugins(),
        )
        for folder, epochs in (("cut", 2), ("whole", 4))
    )
    resumed = fit(
        tmp_path / "cut", saves(tmp_path / "cut"), DynaQuantCallback(**EXACT), epochs=4, plugins=plugins(),
        ckpt_path="last",
    )  # fmt: skip
    assert everything(resumed) == everything(whole)
    state = read_tree(tmp_path / "cut" / "last.ckpt")["MixedPrecision"]
    assert resumed.precision_plugin.state_dict() == whole.precision_plugin.state_dict() == state


def test_bfloat16_autocast_is_searched(tmp_path):
    fit(tmp_path, saves(tmp_path), DynaQuantCallback(), epochs=2, precision="bf16-mixed")
    assert describe(tmp_path / "last.ckpt").met


def test_half_precision_weights_keep_their_dtype(tmp_path):
    fit(tmp_path, saves(tmp_path), DynaQuantCallback(), epochs=1, precision="bf16-true")
    assert read_tree(tmp_path / "last.ckpt")["state_dict"]["net.0.weight"].dtype == torch.bfloat16


class DigitsData(LightningDataModule):
    """Counts the epochs it was asked for, and keeps that in its state."""

    def __init__(self, batch_size=64):
        super().__init__()
        self.save_hyperparameters()
        self.asked = 0

    def train_dataloader(self):
        self.asked += 1
        return loaders(self.hparams.batch_size)[0]

    def val_dataloader(self):
        return loaders()[1]

    def state_dict(self):
        return {"asked": self.asked}

    def load_state_dict(self, state):
        self.asked = state["asked"]


def test_a_data_module_and_its_hyperparameters(tmp_path):
    for epochs, path in ((1, None), (2, "last")):
        data = DigitsData(batch_size=80)
        run = trainer(tmp_path, saves(tmp_path), DynaQuantCallback(**EXACT), epochs=epochs)
        run.fit(Digits(), datamodule=data, ckpt_path=path)
    assert data.asked == 2
    assert DigitsData.load_from_checkpoint(tmp_path / "last.ckpt").hparams.batch_size == 80


class Remembers(Callback):
    """A callback whose state is of a class that only pickle knows."""

    def __init__(self, value=0):
        self.state = {"value": complex(value), "many": list(range(value))}

    def state_dict(self):
        return copy.deepcopy(self.state)

    def load_state_dict(self, state):
        self.state = state


def test_states_of_other_callbacks_come_back_whatever_they_are(tmp_path):
    fit(tmp_path, Remembers(300), saves(tmp_path), DynaQuantCallback(**EXACT), epochs=1)
    fresh = Remembers()
    fit(tmp_path, fresh, saves(tmp_path), DynaQuantCallback(**EXACT), epochs=2, ckpt_path="last")
    assert fresh.state == Remembers(300).state


class Choice:
    """A hyperparameter of a class of its own."""


def test_objects_of_any_class_load_where_native_ones_do(tmp_path):
    class Picky(Digits):
        def __init__(self, choice=None):
            super().__init__()
            self.save_hyperparameters()

    fit(tmp_path, saves(tmp_path), DynaQuantCallback(**EXACT), model=lambda: Picky(Choice()), epochs=1)
    with pytest.raises(UnsupportedStateError, match=r"Choice.*weights_only=False"):
        Picky.load_from_checkpoint(tmp_path / "last.ckpt")
    assert isinstance(
        Picky.load_from_checkpoint(tmp_path / "last.ckpt", weights_only=False).hparams.choice, Choice
    )


class Pair(Digits):
    """Two networks with an optimizer each, stepped by hand."""

    def __init__(self):
        super().__init__()
        self.automatic_optimization = False
        self.other = nn.Linear(64, 10)

    def training_step(self, batch, batch_idx):
        for optimizer, model in zip(self.optimizers(), (self.net, self.other), strict=True):
            loss = functional.cross_entropy(model(batch[0]), batch[1])
            optimizer.zero_grad()
            self.manual_backward(loss)
            optimizer.step()

    def configure_optimizers(self):
        return [torch.optim.AdamW(self.net.parameters()), torch.optim.SGD(self.other.parameters(), 0.1, 0.9)]


def test_two_optimizers_by_hand(tmp_path):
    resumed, whole = halves(tmp_path, model=Pair)
    assert everything(resumed) == everything(whole)
    assert whole.global_step == 160


def test_a_frozen_part_costs_nothing_in_a_delta(tmp_path):
    class Tuned(Digits):
        def __init__(self):
            super().__init__(width=512)
            self.base = nn.Linear(64, 2048).requires_grad_(False)

    fit(tmp_path, saves(tmp_path), DynaQuantCallback(), model=Tuned, epochs=2)
    first, second = (describe(tmp_path / f"step={step}.ckpt") for step in (20, 40))
    assert (first.kind, second.kind) == ("key", "delta")
    assert second.parts["weight"]["stored_bytes"] < first.parts["weight"]["stored_bytes"]


def test_a_model_that_changed_is_refused_by_name(tmp_path):
    fit(tmp_path, saves(tmp_path), DynaQuantCallback(), epochs=1)
    with pytest.raises(RuntimeError, match=r"size mismatch for net\.0\.weight"):
        fit(tmp_path, saves(tmp_path), DynaQuantCallback(), model=lambda: Digits(width=9), ckpt_path="last")


def test_a_saved_state_is_the_state_of_its_moment(tmp_path):
    """Writing happens while training goes on: what is written must not follow it."""

    class Notes(Callback):
        def __init__(self):
            self.kept = {}

        def on_save_checkpoint(self, trainer, pl_module, checkpoint):
            self.kept[trainer.global_step] = bits(copy.deepcopy(checkpoint["state_dict"]))

    notes = Notes()
    keeper = saves(tmp_path, every_n_epochs=None, every_n_train_steps=2, save_last=False)
    fit(tmp_path, notes, keeper, DynaQuantCallback(**EXACT), epochs=2)
    for step, state in notes.kept.items():
        assert bits(dict(read_tree(tmp_path / f"step={step}.ckpt")["state_dict"])) == state


class Probed(Digits):
    """A head of the shapes of the frozen layers before it, whose parameters alone the optimizer numbers."""

    def __init__(self):
        super().__init__()
        blocks = [nn.Sequential(nn.Linear(64, 64), nn.LayerNorm(64)) for _ in range(3)]
        self.net = nn.Sequential(*blocks, nn.Linear(64, 10))
        self.net[:2].requires_grad_(False)
        with torch.no_grad():
            for parameter in self.net.parameters():
                parameter += 0.05 * torch.randn_like(parameter)

    def configure_optimizers(self):
        return torch.optim.AdamW([one for one in self.parameters() if one.requires_grad], lr=self.hparams.lr)


def test_frozen_vectors_come_back_bit_for_bit_and_trained_ones_are_compressed(tmp_path):
    run = fit(tmp_path, saves(tmp_path), DynaQuantCallback(threshold=0.05), model=Probed, epochs=1)
    found, live = read_tree(tmp_path / "last.ckpt")["state_dict"], run.lightning_module
    same = {name: torch.equal(found[name], one) for name, one in live.named_parameters() if one.numel() == 64}
    assert same == {name: not live.get_parameter(name).requires_grad for name in same}
    assert len(same) == 9
