"""Encoder-decoders, compiled and plain models, subclasses of the Trainer."""

from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest
import torch
from accelerate.utils import release_memory
from torch import nn
from transformers import (
    Seq2SeqTrainer,
    Seq2SeqTrainingArguments,
    T5Config,
    T5ForConditionalGeneration,
    Trainer,
    TrainerCallback,
)

from dynaquant_core.errors import StateMismatchError
from dynaquant_core.plugins import describe, read_tree
from dynaquant_transformers import DynaQuantCallback, DynaQuantTrainerMixin
from dynaquant_transformers.weights import put_weights
from tests.integrations.transformers.kit import (
    EXACT,
    arguments,
    bits,
    digits,
    everything,
    gpt,
    names,
    trainer,
)
from tests.training.mapped_life import mapped


class Begin(TrainerCallback):
    """Notes the weights with which training begins."""

    def on_train_begin(self, args, state, control, model, **kwargs):
        self.model = bits(dict(model.state_dict()))


def test_a_table_in_a_file_that_is_mapped_for_reading_is_left_alone(tmp_path):
    """To write there, the same values too, ends the process."""
    np.save(tmp_path / "table.npy", np.ones((16, 16), np.float32))
    model = nn.Sequential(nn.Embedding.from_pretrained(mapped(tmp_path / "table.npy")), nn.Linear(16, 2))
    stored = {"0.weight": torch.ones(16, 16), "1.weight": torch.ones(2, 16), "1.bias": torch.ones(2)}
    with pytest.raises(StateMismatchError, match=r"0\.weight in read-only memory"):
        put_weights(model, {"model": stored | {"0.weight": torch.zeros(16, 16)}})
    assert not model[1].bias.eq(1).any()
    put_weights(model, {"model": stored})
    assert model[1].bias.eq(1).all()


def test_an_encoder_decoder_with_the_seq2seq_trainer(tmp_path):
    images = digits(64)
    pairs = [{"input_ids": row["input_ids"], "labels": row["labels"][1:9]} for row in images]

    def t5(seed):
        torch.manual_seed(seed)
        config = T5Config(
            vocab_size=18, d_model=32, d_kv=16, d_ff=64, num_layers=1, num_heads=2, decoder_start_token_id=17
        )
        return T5ForConditionalGeneration(config)

    def one_of(folder, seed, *callbacks):
        args = arguments(folder, Seq2SeqTrainingArguments, predict_with_generate=True)
        given = {"args": args, "train_dataset": pairs, "eval_dataset": pairs[:8]}
        return trainer(folder, *callbacks, model=t5(seed), kind=Seq2SeqTrainer, **given)

    whole = one_of(tmp_path / "whole", 0)
    whole.train()
    one_of(tmp_path / "ours", 0, DynaQuantCallback(**EXACT)).train()
    again = one_of(tmp_path / "ours", 1, DynaQuantCallback(**EXACT))
    again.train(resume_from_checkpoint=str(tmp_path / "ours" / "checkpoint-4"))
    assert everything(again) == everything(whole)
    searched = one_of(tmp_path / "searched", 0, DynaQuantCallback(threshold=0.05))
    searched.train()
    assert everything(searched) == everything(whole)
    assert describe(tmp_path / "searched" / "checkpoint-8").met


class TrlStyle(Trainer):
    """Collects metrics in compute_loss, averages them in log, and writes a card beside each checkpoint."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self._metrics = {"train": defaultdict(list), "eval": defaultdict(list)}
        self.cards = []

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        loss, outputs = super().compute_loss(model, inputs, True, num_items_in_batch)
        self._metrics["train" if self.model.training else "eval"]["loss_seen"].append(loss.item())
        return (loss, outputs) if return_outputs else loss

    def log(self, logs, start_time=None):
        mode = "train" if self.model.training else "eval"
        super().log(logs | {k: sum(v) / len(v) for k, v in self._metrics[mode].items()}, start_time)
        self._metrics[mode].clear()

    def _save_checkpoint(self, model, trial):
        self.cards.append(self.state.global_step)
        super()._save_checkpoint(model, trial)


def test_a_subclass_that_collects_metrics_logs_what_it_would_log_without_us(tmp_path):
    given = {"kind": TrlStyle, "logging_steps": 3, "eval_strategy": "steps", "eval_steps": 4}
    timed = {"eval_runtime", "eval_samples_per_second", "eval_steps_per_second", "train_runtime"}
    timed |= {"train_samples_per_second", "train_steps_per_second", "eval_model_preparation_time"}

    def lines(one):
        entries = [entry for entry in one.state.log_history if "dynaquant/ratio" not in entry]
        return [{key: value for key, value in entry.items() if key not in timed} for entry in entries]

    whole = trainer(tmp_path / "whole", **given)
    whole.train()
    one = trainer(tmp_path / "ours", DynaQuantCallback(threshold=0.05), **given)
    one.train()
    assert lines(one) == lines(whole)
    assert one.cards == whole.cards == [2, 4, 6, 8]
    assert everything(one) == everything(whole)
    assert not {"model.safetensors", "optimizer.pt"} & names(tmp_path / "ours" / "checkpoint-8")


class Beside(Trainer):
    """Puts files of its own into each checkpoint, before the Trainer does and after it."""

    def _save_checkpoint(self, model, trial):
        folder = Path(self._get_output_dir(trial=trial), f"checkpoint-{self.state.global_step}")
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "before.txt").write_text("")
        super()._save_checkpoint(model, trial)
        (folder / "after.txt").write_text("")


class MixedBeside(DynaQuantTrainerMixin, Beside):
    pass


@pytest.mark.parametrize("kind", [Beside, MixedBeside])
def test_what_a_subclass_puts_beside_a_checkpoint_is_part_of_it(tmp_path, kind):
    one = trainer(tmp_path, DynaQuantCallback(**EXACT), kind=kind)
    one.train()
    for step in (2, 4, 6, 8):
        assert {"before.txt", "after.txt", "dynaquant.json"} <= names(tmp_path / f"checkpoint-{step}")
    assert names(tmp_path) == {f"checkpoint-{step}" for step in (2, 4, 6, 8)}
    assert bits(read_tree(tmp_path / "checkpoint-8")["optimizer"]) == bits(one.optimizer.state_dict())


class Mixed(DynaQuantTrainerMixin, Trainer):
    pass


def test_the_mixin_does_the_same_as_the_callback(tmp_path):
    whole = trainer(tmp_path / "whole")
    whole.train()
    first = trainer(tmp_path / "ours", kind=Mixed, dynaquant=EXACT)
    first.train()
    assert not {"model.safetensors", "optimizer.pt"} & names(tmp_path / "ours" / "checkpoint-8")
    again = trainer(tmp_path / "ours", kind=Mixed, dynaquant=EXACT, model=gpt(seed=9))
    again.train(resume_from_checkpoint=str(tmp_path / "ours" / "checkpoint-4"))
    assert everything(again) == everything(whole)
    logged = [entry["dynaquant/step"] for entry in again.state.log_history if "dynaquant/step" in entry]
    assert logged[-2:] == [6, 8]


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")  # torch.compile looks at all of them
def test_a_compiled_model_resumes_as_a_plain_one_and_the_other_way(tmp_path):
    given = {"torch_compile": True, "torch_compile_backend": "eager"}
    one = trainer(tmp_path, DynaQuantCallback(**EXACT), **given)
    one.train()
    begin = Begin()
    again = trainer(tmp_path, DynaQuantCallback(**EXACT), begin, model=gpt(seed=9), max_steps=9)
    again.train(resume_from_checkpoint=True)
    assert begin.model == bits(dict(one.model.state_dict()))
    begin = Begin()
    torch._dynamo.reset()
    compiled = torch.compile(gpt(seed=8), backend="eager")
    given = {"model": compiled, "max_steps": 10, "remove_unused_columns": False}  # its forward names none
    third = trainer(tmp_path, DynaQuantCallback(**EXACT), begin, **given)
    third.train(resume_from_checkpoint=str(tmp_path / "checkpoint-8"))
    assert {key.replace("_orig_mod.", ""): value for key, value in begin.model.items()} == bits(
        dict(one.model.state_dict())
    )


def test_mixed_precision(tmp_path):
    whole = trainer(tmp_path / "whole", bf16=True)
    whole.train()
    one = trainer(tmp_path / "ours", DynaQuantCallback(threshold=0.05), bf16=True)
    one.train()
    assert everything(one) == everything(whole)
    assert describe(tmp_path / "ours" / "checkpoint-8").met


class Plain(torch.nn.Module):
    """A model that is no PreTrainedModel."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.table = torch.nn.Embedding(18, 32)
        self.norm = torch.nn.BatchNorm1d(32)
        self.head = torch.nn.Linear(32, 18)

    def forward(self, input_ids, labels=None):
        hidden = self.norm(self.table(input_ids).mean(1))
        return {"loss": torch.nn.functional.cross_entropy(self.head(hidden), labels[:, -10])}


def test_any_module_with_several_evaluation_sets(tmp_path):
    sets = {"near": digits(8, first=200), "far": digits(8, first=300)}
    whole = trainer(tmp_path / "whole", model=Plain(), eval_dataset=sets)
    whole.train()
    one = trainer(tmp_path / "ours", DynaQuantCallback(threshold=0.05), model=Plain(), eval_dataset=sets)
    one.train()
    assert everything(one) == everything(whole)
    assert set(read_tree(tmp_path / "ours" / "checkpoint-8")["model"]) == set(one.model.state_dict())
    again = trainer(tmp_path / "ours", DynaQuantCallback(**EXACT), model=Plain(), max_steps=9)
    again.train(resume_from_checkpoint=True)
    assert again.state.global_step == 9


class Probe(nn.Module):
    """A head of the shapes of the frozen layers before it, whose parameters alone the optimizer has."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        blocks = [nn.Sequential(nn.Linear(64, 64), nn.LayerNorm(64)) for _ in range(3)]
        self.net = nn.Sequential(*blocks)
        self.net[:2].requires_grad_(False)
        with torch.no_grad():
            for parameter in self.net.parameters():
                parameter += 0.05 * torch.randn_like(parameter)

    def forward(self, input_ids, labels=None):
        found = self.net(input_ids[:, 1:] / 16)
        return {"loss": (found - labels[:, 1:].flip(1) / 16).square().mean(), "logits": found}


def test_frozen_vectors_come_back_bit_for_bit_and_trained_ones_are_compressed(tmp_path):
    run = trainer(tmp_path, DynaQuantCallback(threshold=0.05), model=Probe(), max_steps=8, save_steps=8)
    run.train()
    found = read_tree(tmp_path / "checkpoint-8")["model"]
    live = dict(run.model.named_parameters())
    same = {name: torch.equal(found[name], one) for name, one in live.items() if one.dim() == 1}
    assert same == {name: not live[name].requires_grad for name in same}
    assert len(same) == 9


def test_a_trainer_that_gave_its_model_away_trains_again(tmp_path):
    """As between the trials of a hyperparameter search, and after them: the next one makes its model anew."""
    one = Trainer(
        model_init=lambda: gpt(width=16),
        args=arguments(tmp_path, max_steps=2),
        train_dataset=digits(),
        callbacks=[DynaQuantCallback(**EXACT)],
    )
    for _ in range(2):
        one.train()
        assert bits(read_tree(tmp_path / "checkpoint-2")["model"]) == bits(dict(one.model.state_dict()))
        one.model_wrapped, one.model = release_memory(one.model_wrapped, one.model)
        one.accelerator.clear()
    one.args.max_steps = 4
    one.train(resume_from_checkpoint=True)
    one.model_wrapped, one.model = release_memory(one.model_wrapped, one.model)
    one.args.max_steps = 6
    one.train(resume_from_checkpoint=True)
    assert one._initial_global_step == 4
    assert bits(read_tree(tmp_path / "checkpoint-6")["model"]) == bits(dict(one.model.state_dict()))
