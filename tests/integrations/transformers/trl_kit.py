"""TRL's trainers on the images of digits, read as text of grey values; nothing is downloaded."""

from __future__ import annotations

import os
import signal
from functools import cache

import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from transformers import PreTrainedTokenizerFast, TrainerCallback

from dynaquant_transformers import DynaQuantCallback
from tests.integrations.transformers.kit import EXACT, VOCABULARY, arguments, digits, gpt

#: Few steps, and evaluations in between: TRL's trainers collect metrics of their own in both.
USUAL = {
    "max_steps": 4,
    "save_steps": 1,
    "eval_strategy": "steps",
    "eval_steps": 2,
    "logging_steps": 3,
    "bf16": False,  # TRL's default, and slow on a CPU
}


def tokenizer():
    """One token for each grey value; 17 ends a text."""
    words = Tokenizer(WordLevel({str(value): value for value in range(VOCABULARY)}, unk_token="0"))
    words.pre_tokenizer = Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=words, pad_token="0", eos_token="17")


@cache
def texts(count, first=0, begin=1, end=33):
    """Some pixels of some images, each image a text."""
    return [" ".join(map(str, row["input_ids"][begin:end].tolist())) for row in digits(count, first)]


def images(count, first=0):
    from datasets import Dataset

    return Dataset.from_dict({"text": texts(count, first)})


def pairs(count, first=0):
    """The upper half of an image, its own lower half, and the one of another image."""
    from datasets import Dataset

    upper, lower = texts(count, first), texts(count, first, 33, 49)
    return Dataset.from_dict({"prompt": upper, "chosen": lower, "rejected": lower[1:] + lower[:1]})


def sft(folder, *callbacks, model=None, peft_config=None, **given):
    """An `SFTTrainer`; ``given``: training arguments."""
    from trl import SFTConfig, SFTTrainer

    return SFTTrainer(
        model=gpt() if model is None else model,
        args=arguments(folder, SFTConfig, **(USUAL | given)),
        train_dataset=images(96),
        eval_dataset=images(16, first=200),
        processing_class=tokenizer(),
        callbacks=list(callbacks),
        peft_config=peft_config,
    )


def dpo(folder, *callbacks, model=None, **given):
    """A `DPOTrainer`, measured against the model that `gpt` makes."""
    from trl import DPOConfig, DPOTrainer

    return DPOTrainer(
        model=gpt() if model is None else model,
        ref_model=gpt(),
        args=arguments(folder, DPOConfig, **(USUAL | given)),
        train_dataset=pairs(48),
        eval_dataset=pairs(16, first=200),
        processing_class=tokenizer(),
        callbacks=list(callbacks),
    )


def grpo(folder, *callbacks, model=None, **given):
    """A `GRPOTrainer` that likes bright pixels, and whose pressure for entropy grows."""
    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer

    drawn = {"num_generations": 2, "max_completion_length": 4, "eval_strategy": "no"}
    drawn |= {"use_adaptive_entropy": True, "entropy_target": 9.0}
    return GRPOTrainer(
        model=gpt() if model is None else model,
        reward_funcs=lambda completions, **_: [float(sum(map(int, text.split()))) for text in completions],
        args=arguments(folder, GRPOConfig, **(USUAL | drawn | given)),
        train_dataset=Dataset.from_dict({"prompt": texts(32, end=9)}),
        processing_class=tokenizer(),
        callbacks=list(callbacks),
    )


class Die(TrainerCallback):
    """Ends the process by SIGKILL after a step."""

    def __init__(self, step):
        self.step = step

    def on_step_end(self, args, state, control, **kwargs):
        if state.global_step == self.step:
            os.kill(os.getpid(), signal.SIGKILL)


def live(folder, step):
    """A supervised training that does not get beyond ``step``."""
    torch.set_num_threads(1)
    sft(folder, DynaQuantCallback(**EXACT), Die(step)).train()
