"""A job in the HF Trainer: a GPT-2, ``save_steps``, ``save_total_limit``, ``resume_from_checkpoint=True``."""

from __future__ import annotations

from typing import Any

import torch
import transformers
from job import CONTEXT, RATE, Job, Material, result, timed
from torch import Tensor
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments


class Watch(TrainerCallback):
    """Notes where training begins, and ends the process where it is to die."""

    def __init__(self, job: Job) -> None:
        self.job, self.began = job, 0

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002
        """The first step, or the one that was restored."""
        self.began = state.global_step

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002
        """After a step."""
        self.job.may_die(state.global_step)


def rows(inputs: Tensor, targets: Tensor) -> list[dict[str, Tensor]]:
    """Sequences with the character after them: the model shifts them by itself."""
    tokens = torch.cat([inputs, targets[:, -1:]], dim=1)
    return [{"input_ids": row, "labels": row} for row in tokens]


def train(job: Job) -> dict[str, Any]:
    """Trains to the end, or to death."""
    transformers.logging.set_verbosity_error()
    material = Material(job)
    torch.manual_seed(job.seed)
    layers, width, heads = material.shape
    config = GPT2Config(
        vocab_size=material.classes,
        n_positions=CONTEXT + 1,
        n_embd=width,
        n_layer=layers,
        n_head=heads,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        bos_token_id=0,
        eos_token_id=0,
    )
    arguments = TrainingArguments(
        job.folder,
        max_steps=job.steps,
        save_steps=job.every,
        save_total_limit=job.keep or None,
        per_device_train_batch_size=job.batch,
        per_device_eval_batch_size=32,
        learning_rate=RATE,
        seed=job.seed,
        use_cpu=True,
        dataloader_pin_memory=False,
        disable_tqdm=True,
        logging_strategy="no",
        report_to=[],
    )
    watch = Watch(job)
    callbacks: list[TrainerCallback] = [watch]
    if job.ours:
        from dynaquant_transformers import DynaQuantCallback

        callbacks.append(DynaQuantCallback(**job.options()))
    model = GPT2LMHeadModel(config)
    searched = [row for inputs, targets in material.search for row in rows(inputs, targets)]
    trainer = Trainer(
        model,
        arguments,
        train_dataset=rows(material.inputs, material.targets),
        eval_dataset=searched if job.search else None,
        callbacks=callbacks,
    )
    trainer.remove_callback(transformers.PrinterCallback)
    held: list[float] = []
    trainer._save_checkpoint = timed(trainer._save_checkpoint, held)
    trainer.train(resume_from_checkpoint=job.resume)
    return result(job, watch.began, model, lambda tokens: model(tokens).logits, held)
