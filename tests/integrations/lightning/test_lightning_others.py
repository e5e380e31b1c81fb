"""What others put into a Lightning checkpoint, and what of it is an average of the weights."""

import pytest
import torch
from lightning.pytorch import Callback, LightningDataModule

from dynaquant_core.plugins import describe, read_tree
from dynaquant_lightning import DynaQuantCallback, DynaQuantCheckpointIO
from tests.integrations.lightning.kit import Digits, loaders, saves, trainer


def noise(seed):
    """Numbers that look like a weight and are none."""
    return torch.randn(200, 64, generator=torch.Generator().manual_seed(seed))


class Queue(Callback):
    """Features that a callback gathers, as contrastive learning keeps them."""

    def __init__(self):
        self.held = None

    def state_dict(self):
        return {"held": noise(1)}

    def load_state_dict(self, state):
        self.held = state["held"]


class Replaying(Digits):
    """Puts a table of its own into each checkpoint, and has one among its hyperparameters."""

    def __init__(self, prior=None):
        super().__init__(width=256)
        self.save_hyperparameters()

    def on_save_checkpoint(self, checkpoint):
        checkpoint["replay"] = {"weight": noise(2)}

    def on_load_checkpoint(self, checkpoint):
        self.replay = checkpoint["replay"]["weight"]


class Normalising(LightningDataModule):
    """Knows the mean of its data."""

    def train_dataloader(self):
        return loaders()[0]

    def val_dataloader(self):
        return loaders()[1]

    def state_dict(self):
        return {"mean": noise(3)}

    def load_state_dict(self, state):
        self.mean = state["mean"]


class Sampled:
    """A training loader with a table in its state."""

    def __iter__(self):
        return iter(loaders()[0])

    def __len__(self):
        return len(loaders()[0])

    def state_dict(self):
        return {"weights": noise(4)}

    def load_state_dict(self, state):
        self.weights = state["weights"]


@pytest.mark.parametrize("ours", [DynaQuantCallback, DynaQuantCheckpointIO])
def test_what_is_no_weight_comes_back_as_it_was(tmp_path, ours):
    for path in (None, "last"):
        queue, loader, data = Queue(), Sampled(), Normalising()
        data.train_dataloader = lambda loader=loader: loader
        model = Replaying(noise(5)) if path is None else Replaying()
        keeper, given = saves(tmp_path, every_n_epochs=None, every_n_train_steps=10), ours(threshold=0.05)
        plugged = {"plugins": [given]} if ours is DynaQuantCheckpointIO else {}
        callbacks = [keeper, queue, *([] if plugged else [given])]
        run = trainer(tmp_path, *callbacks, epochs=-1, max_steps=10 if path is None else 20, **plugged)
        run.fit(model, datamodule=data, ckpt_path=path)
    found = [queue.held, model.replay, data.mean, loader.weights]
    assert [torch.equal(one, noise(seed)) for seed, one in enumerate(found, 1)] == [True] * 4
    assert torch.equal(read_tree(tmp_path / "step=10.ckpt")["hyper_parameters"]["prior"], noise(5))
    weight = read_tree(tmp_path / "last.ckpt")["state_dict"]["net.0.weight"]
    assert not torch.equal(weight, model.net[0].weight)  # weights are compressed all the same


def test_an_average_that_a_callback_keeps_is_compressed_as_weights_are(tmp_path):
    class Average(Callback):
        def state_dict(self):
            return {
                "average": {name: each + 0.01 for name, each in run.lightning_module.state_dict().items()}
            }

    run = trainer(tmp_path, saves(tmp_path), Average(), DynaQuantCallback(), epochs=1)
    run.fit(Digits(width=256), *loaders())
    weights = describe(tmp_path / "last.ckpt").parts["weight"]
    assert weights["raw_bytes"] > 2 * 4 * 64 * 256
    assert weights["stored_bytes"] * 3 < weights["raw_bytes"]
