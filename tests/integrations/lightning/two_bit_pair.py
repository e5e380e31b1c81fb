"""Two ranks, gradients in two bits: ``python -m tests.integrations.lightning.two_bit_pair FOLDER``."""

import hashlib
import json
import sys
import warnings
from pathlib import Path

import torch
from lightning.pytorch import Callback

from dynaquant_core.comm import two_bit
from dynaquant_core.plugins import describe
from dynaquant_lightning import DynaQuantCallback
from tests.integrations.lightning.kit import EXACT, bits, fit, saves


class TwoBits(Callback):
    """As docs/two-bit.md shows it; notes what the rank ended with."""

    def __init__(self, folder, threshold):
        self.folder, self.threshold, self.state = folder, threshold, None

    def on_train_start(self, trainer, *_):
        if self.threshold:
            model = trainer.strategy.model
            self.state = two_bit.registered(model) or two_bit.register(model, threshold=self.threshold)

    def on_train_end(self, trainer, module):
        digest = hashlib.sha256(repr(bits(dict(module.named_parameters()))).encode()).hexdigest()
        sent = None if self.state is None else self.state.step
        note = {"digest": digest, "sent": sent, "loss": float(trainer.callback_metrics["val_loss"])}
        (self.folder / str(trainer.global_rank)).write_text(json.dumps(note))


def train(folder, threshold):
    """What each of two ranks ended with."""
    folder.mkdir()
    callbacks = saves(folder), DynaQuantCallback(**EXACT), TwoBits(folder, threshold)
    fit(folder, *callbacks, epochs=4, devices=2, strategy="ddp_fork")
    return [json.loads((folder / str(rank)).read_text()) for rank in range(2)]


def main(folder):
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    said = {"dense": train(folder / "dense", None), "two_bit": train(folder / "two_bit", 1e-3)}
    said["step"] = describe(folder / "two_bit" / "last.ckpt").step
    print(json.dumps(said))  # noqa: T201


if __name__ == "__main__":
    main(Path(sys.argv[1]))
