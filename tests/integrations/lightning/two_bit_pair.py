"""Two ranks, gradients in two bits: ``python -m tests.integrations.lightning.two_bit_pair FOLDER``."""

import hashlib
import json
import sys
import warnings
from pathlib import Path

import lightning
import lightning.pytorch
import torch

from dynaquant_core.plugins import describe
from dynaquant_lightning import DynaQuantCallback
from tests.integrations.lightning.kit import EXACT, bits, fit, saves
from tests.integrations.pages import shown

TwoBits = shown("two-bit.md", "class TwoBits(lightning", lightning=lightning)["TwoBits"]


class Noted(lightning.pytorch.Callback):
    """Notes what the rank ended with."""

    def __init__(self, folder, packs):
        self.folder, self.packs = folder, packs

    def on_train_end(self, trainer, module):
        digest = hashlib.sha256(repr(bits(dict(module.named_parameters()))).encode()).hexdigest()
        sent = self.packs.state.step if self.packs else None
        note = {"digest": digest, "sent": sent, "loss": float(trainer.callback_metrics["val_loss"])}
        (self.folder / str(trainer.global_rank)).write_text(json.dumps(note))


def train(folder, *packs):
    """What each of two ranks ended with."""
    folder.mkdir()
    callbacks = saves(folder), DynaQuantCallback(**EXACT), *packs, Noted(folder, packs[0] if packs else None)
    fit(folder, *callbacks, epochs=4, devices=2, strategy="ddp_fork")
    return [json.loads((folder / str(rank)).read_text()) for rank in range(2)]


def main(folder):
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    said = {"dense": train(folder / "dense"), "two_bit": train(folder / "two_bit", TwoBits())}
    said["step"] = describe(folder / "two_bit" / "last.ckpt").step
    print(json.dumps(said))  # noqa: T201


if __name__ == "__main__":
    main(Path(sys.argv[1]))
