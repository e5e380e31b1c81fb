import json
import logging
import shutil
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import PreTrainedTokenizerFast, TrainerCallback

from dynaquant_core.plugins import describe, read_tree
from dynaquant_transformers import DynaQuantCallback
from tests.integrations.transformers.kit import (
    EXACT,
    bits,
    checkpoints,
    digits,
    everything,
    gpt,
    names,
    trainer,
)

NATIVE = {"optimizer.pt", "model.safetensors", "pytorch_model.bin"}


class Native(TrainerCallback):
    """Notes every native file of weights or optimizer that is there when the Trainer has saved."""

    def __init__(self):
        self.seen = set()

    def on_save(self, args, state, control, **kwargs):
        folder = Path(args.output_dir, f"checkpoint-{state.global_step}")
        assert (folder / "dynaquant.json").is_file(), "who hears of a save finds it"
        self.seen |= NATIVE & {path.name for path in Path(args.output_dir).rglob("*")}


@pytest.fixture(scope="module")
def native(tmp_path_factory):
    """The training that all others are compared with: no callback of ours, native checkpoints."""
    one = trainer(tmp_path_factory.mktemp("native"))
    one.train()
    return one


def tokenizer():
    words = {str(number): number for number in range(18)}
    return PreTrainedTokenizerFast(tokenizer_object=Tokenizer(WordLevel(words, unk_token="0")), pad_token="0")


def test_a_checkpoint_holds_what_a_native_one_holds_without_its_large_files(tmp_path):
    listener = Native()
    one = trainer(tmp_path, DynaQuantCallback(threshold=0.05), listener, processing_class=tokenizer())
    one.train()
    assert checkpoints(tmp_path) == [2, 4, 6, 8]
    assert listener.seen == set()
    found = names(tmp_path / "checkpoint-8")
    assert {"config.json", "generation_config.json", "tokenizer.json", "trainer_state.json"} <= found
    assert {"scheduler.pt", "rng_state.pth", "training_args.bin", "dynaquant.json"} <= found
    assert names(tmp_path) == {f"checkpoint-{step}" for step in (2, 4, 6, 8)}
    info = describe(tmp_path / "checkpoint-8")
    assert (info.step, info.met) == (8, True)
    assert info.ratio > 4
    assert info.degradation <= 0.05


def test_training_is_bit_identical_to_training_without_us(tmp_path, native):
    one = trainer(tmp_path, DynaQuantCallback(threshold=0.05))
    one.train()
    assert everything(one) == everything(native)
    logged = [entry for entry in one.state.log_history if "dynaquant/ratio" in entry]
    assert [entry["dynaquant/step"] for entry in logged] == [2, 4, 6, 8]
    assert all(entry["dynaquant/degradation"] <= 0.05 for entry in logged)
    assert all(entry["dynaquant/seconds/search"] > 0 for entry in logged)


@pytest.mark.parametrize("wanted", [True, "checkpoint-4"])
def test_a_resumed_run_is_the_uninterrupted_one(tmp_path, native, wanted):
    first = trainer(tmp_path, DynaQuantCallback(**EXACT), max_steps=8)
    first.add_callback(StopAfter(5))
    first.train()
    assert checkpoints(tmp_path) == [2, 4, 5]
    shutil.rmtree(tmp_path / "checkpoint-5")
    again = trainer(tmp_path, DynaQuantCallback(**EXACT), model=gpt(seed=9))
    again.train(resume_from_checkpoint=wanted if wanted is True else str(tmp_path / wanted))
    assert everything(again) == everything(native)
    assert checkpoints(tmp_path) == [2, 4, 6, 8]


class Restored(TrainerCallback):
    """Notes the weights with which training begins."""

    def on_train_begin(self, args, state, control, model, **kwargs):
        self.model = bits(dict(model.state_dict()))


class StopAfter(TrainerCallback):
    def __init__(self, step):
        self.step = step

    def on_step_end(self, args, state, control, **kwargs):
        if state.global_step == self.step:
            control.should_save = control.should_training_stop = True


def test_a_resumed_run_goes_on_where_the_checkpoint_was(tmp_path):
    """Rounded to the threshold, not to the bit; the next checkpoint builds on the one resumed from."""
    first = trainer(tmp_path, DynaQuantCallback(threshold=0.05))
    first.train()
    before = first.state.log_history
    again = trainer(tmp_path, DynaQuantCallback(threshold=0.05), model=gpt(seed=9), max_steps=10)
    again.train(resume_from_checkpoint=True)
    assert again.state.global_step == 10
    info = describe(tmp_path / "checkpoint-10")
    assert (info.kind, info.base_step) == ("delta", 8)
    restored = {entry["step"] for entry in before} & {entry["step"] for entry in again.state.log_history}
    assert restored, "the Trainer's own state was restored"


def test_true_begins_at_zero_where_nothing_was_saved_yet(tmp_path, native, caplog):
    one = trainer(tmp_path / "new", DynaQuantCallback(**EXACT))
    with caplog.at_level(logging.WARNING):
        one.train(resume_from_checkpoint=True)
    assert everything(one) == everything(native)
    assert "training begins at step 0" in caplog.text


def test_accumulated_gradients_and_saves_by_epoch(tmp_path):
    given = {
        "gradient_accumulation_steps": 3,
        "save_strategy": "epoch",
        "num_train_epochs": 3,
        "max_steps": -1,
        "train_dataset": digits(40),
    }
    whole = trainer(tmp_path / "whole", **given)
    whole.train()
    killed = trainer(tmp_path / "ours", DynaQuantCallback(**EXACT), **given)
    killed.train()
    assert checkpoints(tmp_path / "ours") == checkpoints(tmp_path / "whole") == [4, 8, 12]
    shutil.rmtree(tmp_path / "ours" / "checkpoint-12")
    again = trainer(tmp_path / "ours", DynaQuantCallback(**EXACT), model=gpt(seed=9), **given)
    again.train(resume_from_checkpoint=True)
    assert everything(again) == everything(whole)


def test_only_the_model_is_saved_where_only_it_was_asked_for(tmp_path):
    one = trainer(tmp_path, DynaQuantCallback(**EXACT), save_only_model=True)
    one.train()
    folder = tmp_path / "checkpoint-8"
    assert list(read_tree(folder)) == ["model"]
    assert not {"scheduler.pt", "rng_state.pth"} & names(folder)
    restored = Restored()
    again = trainer(tmp_path, DynaQuantCallback(**EXACT), restored, model=gpt(seed=9), max_steps=9)
    again.train(resume_from_checkpoint=str(folder))
    assert restored.model == bits(dict(one.model.state_dict()))


def test_the_best_model_is_loaded_at_the_end(tmp_path):
    given = {
        "eval_strategy": "steps",
        "eval_steps": 2,
        "save_strategy": "best",
        "metric_for_best_model": "loss",
        "load_best_model_at_end": True,
        "save_total_limit": 1,
        "learning_rate": 0.2,  # it gets worse again
        "max_steps": 6,
        "lr_scheduler_type": "constant",
    }
    whole = trainer(tmp_path / "native", **given)
    whole.train()
    one = trainer(tmp_path / "ours", DynaQuantCallback(**EXACT), **given)
    one.train()
    best = one.state.best_global_step
    assert best == whole.state.best_global_step < 6
    assert one.state.best_model_checkpoint == str(tmp_path / "ours" / f"checkpoint-{best}")
    assert checkpoints(tmp_path / "ours") == checkpoints(tmp_path / "native") == [best]
    assert bits(dict(one.model.state_dict())) == bits(dict(whole.model.state_dict()))
    state = json.loads((tmp_path / "ours" / f"checkpoint-{best}" / "trainer_state.json").read_text())
    assert state["best_model_checkpoint"] == one.state.best_model_checkpoint


def test_the_trainers_rotation_never_breaks_a_chain(tmp_path):
    given = {"save_steps": 1, "max_steps": 8, "save_total_limit": 2}
    one = trainer(tmp_path, DynaQuantCallback(**EXACT, max_chain=8), **given)
    one.train()
    assert checkpoints(tmp_path) == [7, 8]
    assert describe(tmp_path / "checkpoint-8").kind == "delta"
    shutil.rmtree(tmp_path / "checkpoint-7")
    stored = read_tree(tmp_path / "checkpoint-8")
    assert bits(stored["model"]) == bits(dict(one.model.state_dict()))
    assert bits(stored["optimizer"]) == bits(one.optimizer.state_dict())


def test_a_limit_that_removes_nothing_shortens_no_chain(tmp_path):
    given = {"save_steps": 1, "max_steps": 3, "save_total_limit": -1}
    trainer(tmp_path, DynaQuantCallback(**EXACT), **given).train()
    assert checkpoints(tmp_path) == [1, 2, 3]
    assert [describe(tmp_path / f"checkpoint-{step}").kind for step in (1, 2, 3)] == ["key", "delta", "delta"]


def test_a_saved_model_stays_native(tmp_path):
    one = trainer(tmp_path, DynaQuantCallback(**EXACT), max_steps=2)
    one.train()
    one.save_model(tmp_path / "final")
    assert "model.safetensors" in names(tmp_path / "final")
    loaded = type(one.model).from_pretrained(tmp_path / "final")
    assert torch.equal(loaded.lm_head.weight, one.model.lm_head.weight)
