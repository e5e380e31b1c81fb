"""A small classifier of handwritten digits in Lightning, and what the tests compare of it."""

import logging

import torch
from lightning.pytorch import LightningModule, Trainer, seed_everything
from lightning.pytorch.callbacks import Checkpoint, ModelCheckpoint
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)

#: Nothing is rounded: a resumed run is the uninterrupted one.
EXACT = {"exact": "*", "moments": "exact"}


class Digits(LightningModule):
    """Two layers and a batch norm, whose buffers change with every training batch."""

    def __init__(self, width=48, lr=1e-2, dropout=0.0):
        super().__init__()
        self.save_hyperparameters()
        self.net = nn.Sequential(
            nn.Linear(64, width), nn.BatchNorm1d(width), nn.ReLU(), nn.Dropout(dropout), nn.Linear(width, 10)
        )

    def forward(self, x):
        return self.net(x)

    def training_step(self, batch, batch_idx):
        loss = functional.cross_entropy(self(batch[0]), batch[1])
        self.log("train_loss", loss)
        return loss

    def validation_step(self, batch, batch_idx):
        self.log("val_loss", functional.cross_entropy(self(batch[0]), batch[1]))

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=self.hparams.lr)
        return [optimizer], [torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)]


def digits():
    """(training, validation) sets: 1280 and 512 images of 64 pixels."""
    found = load_digits()
    images, labels = torch.tensor(found.data / 16, dtype=torch.float32), torch.tensor(found.target)
    return TensorDataset(images[:1280], labels[:1280]), TensorDataset(images[1280:1792], labels[1280:1792])


def loaders(batch_size=64, shuffle=False):
    """(training, validation) loaders; 20 training batches."""
    training, validation = digits()
    return DataLoader(training, batch_size, shuffle=shuffle), DataLoader(validation, 128)


def trainer(folder, *callbacks, epochs=3, **options):
    """A quiet Trainer on the CPU."""
    given = {"accelerator": "cpu", "devices": 1, "logger": False, "max_epochs": epochs} | options
    return Trainer(
        default_root_dir=folder,
        callbacks=list(callbacks),
        enable_progress_bar=False,
        enable_model_summary=False,
        enable_checkpointing=any(isinstance(one, Checkpoint) for one in callbacks),
        **given,
    )


def fit(folder, *callbacks, model=Digits, seed=0, ckpt_path=None, data=None, **options):
    """Trains a model, or one that is made once the seed is set; returns the trainer."""
    seed_everything(seed, verbose=False)
    model = model() if callable(model) and not isinstance(model, nn.Module) else model
    train, validation = data or loaders()
    run = trainer(folder, *callbacks, **options)
    run.fit(model, train, validation, ckpt_path=ckpt_path)
    return run


def saves(folder, **options):
    """A ModelCheckpoint that keeps everything and a last one."""
    given = {"save_top_k": -1, "save_last": True, "every_n_epochs": 1, "filename": "{step}"} | options
    return ModelCheckpoint(folder, **given)


def bits(value):
    """Every tensor and number of a tree as comparable text."""
    if isinstance(value, torch.Tensor):
        raw = value.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
        return str(value.dtype), tuple(value.shape), raw.numpy().tobytes()
    if isinstance(value, dict):
        return {str(key): bits(item) for key, item in value.items()}
    return [bits(item) for item in value] if isinstance(value, (list, tuple)) else repr(value)


def everything(run):
    """What a run is: weights, buffers, optimizer and scheduler state, and where it stands."""
    return bits(
        {
            "model": run.lightning_module.state_dict(),
            "optimizers": [optimizer.state_dict() for optimizer in run.optimizers],
            "schedulers": [config.scheduler.state_dict() for config in run.lr_scheduler_configs],
            "step": run.global_step,
            "epoch": run.current_epoch,
        }
    )
