"""A small GPT-2 that learns images of digits pixel by pixel, trained by the real Trainer."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import torch
from sklearn.datasets import load_digits
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

from tests.programs import Program

ROOT = Path(__file__).parents[3]

#: Pixel values and one token that begins an image.
VOCABULARY = 18

#: Nothing is rounded: a resumed run is the uninterrupted one.
EXACT = {"exact": ("*",), "moments": "exact"}


def digits(count=96, first=0):
    """Images as sequences: a beginning, then 64 pixels of 17 grey values."""
    pixels = torch.from_numpy(load_digits().data[first : first + count]).long()
    tokens = torch.cat([torch.full((len(pixels), 1), 17), pixels], dim=1)
    return [{"input_ids": row, "labels": row} for row in tokens]


def gpt(seed=0, width=32, **options):
    """Tied embeddings, dropout, two layers."""
    torch.manual_seed(seed)
    config = GPT2Config(
        vocab_size=VOCABULARY,
        n_positions=65,
        n_embd=width,
        n_layer=2,
        n_head=2,
        bos_token_id=17,
        eos_token_id=17,
        loss_type="ForCausalLM",
        **options,
    )
    return GPT2LMHeadModel(config)


def arguments(folder, kind=TrainingArguments, **given):
    defaults = {
        "max_steps": 8,
        "save_steps": 2,
        "learning_rate": 1e-2,
        "per_device_train_batch_size": 4,
        "per_device_eval_batch_size": 8,
        "logging_steps": 100,
        "report_to": [],
        "disable_tqdm": True,
        "dataloader_pin_memory": False,
        "use_cpu": True,
        "seed": 1,
    }
    return kind(str(folder), **(defaults | given))


def trainer(folder, *callbacks, model=None, kind=Trainer, optimizers=(None, None), **given):
    """A Trainer of the digits; ``given``: training arguments, or the Trainer's own by these names."""
    own = {name: given.pop(name) for name in TRAINERS if name in given}
    return kind(
        model=gpt() if model is None else model,
        args=given.pop("args", None) or arguments(folder, **given),
        **{"train_dataset": digits(), "eval_dataset": digits(16, first=200)} | own,
        callbacks=list(callbacks),
        optimizers=optimizers,
    )


TRAINERS = (
    "train_dataset",
    "eval_dataset",
    "processing_class",
    "compute_metrics",
    "data_collator",
    "dynaquant",
)


def bits(state):
    """Every tensor and number of a tree as comparable text."""
    if isinstance(state, torch.Tensor):
        data = state.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
        return (str(state.dtype), tuple(state.shape), hashlib.sha256(data).hexdigest())
    if isinstance(state, dict):
        return {key: bits(value) for key, value in state.items()}
    if isinstance(state, (list, tuple)):
        return [bits(value) for value in state]
    return repr(state)


def everything(one):
    """What a training consists of, after it."""
    return {
        "model": bits(dict(one.model.state_dict())),
        "optimizer": bits(one.optimizer.state_dict()),
        "scheduler": bits(one.lr_scheduler.state_dict()),
        "rng": bits(torch.get_rng_state()),
        "step": one.state.global_step,
    }


def names(folder):
    return {path.name for path in Path(folder).iterdir()}


def checkpoints(folder):
    """Steps of the folders that the Trainer takes for checkpoints."""
    return sorted(int(path.name.partition("-")[2]) for path in Path(folder).glob("checkpoint-*"))


def python(*words, **more):
    """Runs a Python process that finds the packages of this tree."""
    return subprocess.Popen(
        [sys.executable, *map(str, words)], cwd=ROOT, env=environment(), text=True, **more
    )


def program(*words, env):
    """The same, where a process need not import the Trainer itself."""
    return Program(words, env=environment() | env, needs=("transformers.trainer",))


def environment():
    paths = os.pathsep.join([str(ROOT), str(ROOT / "integrations"), os.environ.get("PYTHONPATH", "")])
    return os.environ | {"PYTHONPATH": paths}
