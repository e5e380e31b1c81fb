"""One rank of a data-parallel training: ``python -m tests.integrations.transformers.ranks FOLDER``.

It trains without us, with us, and resumed by us, and compares its own results; then trainings end, well or
not (`leaving`), and others look at once for what was saved (`awaited_ranks`).  It prints what was saved and
what it heard.
"""

import json
import sys
from pathlib import Path

import torch
import transformers

from dynaquant_core.plugins import describe
from dynaquant_transformers import DynaQuantCallback
from tests.full_disk import files_of_at_most
from tests.integrations.killing import digest_of
from tests.integrations.pages import shown
from tests.integrations.transformers.awaited_ranks import find
from tests.integrations.transformers.kit import EXACT, everything, gpt, trainer
from tests.integrations.transformers.leaving import leave

GIVEN = {
    "ddp_backend": "gloo",
    "eval_strategy": "steps",
    "eval_steps": 2,
    "metric_for_best_model": "loss",
    "load_best_model_at_end": True,
    "max_steps": 6,
}


def two_bits(folder):
    """How many steps travelled in two bits, and a digest of the weights that they led to; twice.

    With the callback that docs/two-bit.md shows; the second training goes on from the first's checkpoint.
    """
    packs = shown("two-bit.md", "class TwoBits(transformers", transformers=transformers)["TwoBits"]()
    packs.trainer = trainer(folder, packs, DynaQuantCallback(**EXACT), **GIVEN)
    packs.trainer.train()
    found = [packs.state.step, digest_of(everything(packs.trainer)["model"])]
    packs.trainer.args.max_steps = 8
    packs.trainer.train(resume_from_checkpoint=True)
    return [*found, packs.state.step, digest_of(everything(packs.trainer)["model"])]


def lost(folder):
    """The best checkpoint where the disk of the rank that saves took none, and a digest of the weights."""
    one = trainer(folder, DynaQuantCallback(**EXACT, on_error="warn"), **GIVEN)
    with files_of_at_most(60_000):  # enough for the Trainer's own files
        one.train()
    return one.state.best_model_checkpoint, digest_of(everything(one)["model"])


def trained(one):
    """What training left behind; the model is then the best one, which ours has rounded."""
    return {name: value for name, value in everything(one).items() if name != "model"}


def main(folder):
    torch.set_num_threads(1)
    whole = trainer(folder / "native", **GIVEN)
    whole.train()
    searched = trainer(folder / "searched", DynaQuantCallback(threshold=0.05), **GIVEN)
    searched.train()
    assert trained(searched) == trained(whole), "trained with us"
    trainer(folder / "exact", DynaQuantCallback(**EXACT), **GIVEN).train()
    again = trainer(folder / "exact", DynaQuantCallback(**EXACT), model=gpt(seed=9), **GIVEN)
    again.train(resume_from_checkpoint=str(folder / "exact" / "checkpoint-4"))
    assert everything(again) == everything(whole), "resumed"
    info = describe(folder / "searched" / "checkpoint-6")
    said = {"saved": [info.step, info.met, info.evaluations > 0], "two_bit": two_bits(folder / "two_bit")}
    said["lost"] = lost(folder / "lost")
    said |= find(folder / "found", again.args.process_index)
    said |= leave(folder, again.args.process_index)
    sys.stdout.write(json.dumps(said) + "\n")
    again.accelerator.wait_for_everyone()
    again.end()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
