"""A training in a process of its own, that tells how far it is and is killed while it trains or saves."""

from __future__ import annotations

import torch
from transformers import TrainerCallback

from dynaquant_transformers import DynaQuantCallback
from tests.integrations.transformers.kit import EXACT, everything, gpt, trainer


class Progress(TrainerCallback):
    def __init__(self, pipe):
        self.pipe = pipe

    def on_train_begin(self, args, state, control, **kwargs):
        self.pipe.send(("start", state.global_step))

    def on_step_end(self, args, state, control, **kwargs):
        self.pipe.send(("step", state.global_step))


def live(folder, pipe, steps, ours=True, seed=0):
    """Trains to the end, or until it is killed."""
    torch.set_num_threads(1)
    callbacks = [Progress(pipe), *([DynaQuantCallback(**EXACT, max_chain=3)] if ours else [])]
    one = trainer(folder, *callbacks, model=gpt(seed=seed), max_steps=steps, save_steps=2, save_total_limit=2)
    one.train(resume_from_checkpoint=ours)
    pipe.send(("end", everything(one)))
