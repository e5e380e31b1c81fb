"""A Trainer whose own saving and loading never come to the Trainer's: SentenceTransformerTrainer."""

from __future__ import annotations

import random

import pytest
import torch
from transformers import TrainerCallback

from dynaquant_transformers import DynaQuantCallback
from dynaquant_transformers.hiding import hides
from tests.integrations.transformers.kit import EXACT, arguments, everything, names

sentence_transformers = pytest.importorskip("sentence_transformers")
datasets = pytest.importorskip("datasets")
tokenizers = pytest.importorskip("tokenizers")
losses = pytest.importorskip("sentence_transformers.losses")
modules = pytest.importorskip("sentence_transformers.models")

WORDS = [f"w{number}" for number in range(200)]


def model_of(seed, *more):
    vocabulary = {"[UNK]": 0} | {word: number + 1 for number, word in enumerate(WORDS)}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    torch.manual_seed(seed)
    table = modules.StaticEmbedding(tokenizer, embedding_dim=32)
    return sentence_transformers.SentenceTransformer(modules=[table, *more], device="cpu")


def pairs():
    draw = random.Random(0)
    columns = {
        name: [" ".join(draw.choices(WORDS, k=5)) for _ in range(64)] for name in ("anchor", "positive")
    }
    return datasets.Dataset.from_dict(columns)


def sentences(folder, *callbacks, seed=0, more=(), **options):
    model, data = model_of(seed, *more), pairs()
    return sentence_transformers.SentenceTransformerTrainer(
        model,
        arguments(folder, sentence_transformers.SentenceTransformerTrainingArguments, **options),
        train_dataset=data,
        eval_dataset=data.select(range(16)),
        loss=losses.MultipleNegativesRankingLoss(model),
        callbacks=list(callbacks),
    )


@pytest.mark.parametrize("method", ["_save", "_load_from_checkpoint"])
def test_it_overrides_what_the_plugin_stands_in_for(method):
    assert hides(sentence_transformers.SentenceTransformerTrainer, method)


def test_it_writes_no_native_weights_and_resumes_from_ours(tmp_path):
    whole = sentences(tmp_path / "whole")
    whole.train()
    first = sentences(tmp_path / "ours", DynaQuantCallback(**EXACT))
    first.train()
    assert everything(first) == everything(whole)
    checkpoint = tmp_path / "ours" / "checkpoint-4"
    assert any(name.endswith(".dq") for name in names(checkpoint))
    assert "model.safetensors" not in names(checkpoint)
    again = sentences(tmp_path / "ours", DynaQuantCallback(**EXACT), seed=1)
    again.train(resume_from_checkpoint=str(checkpoint))
    assert everything(again) == everything(whole)
    assert "_save" not in vars(again)  # its methods are its own again


def test_modules_in_folders_of_their_own_leave_no_native_weights(tmp_path):
    sentences(tmp_path / "whole", more=[modules.Dense(32, 8)]).train()
    assert list((tmp_path / "whole" / "checkpoint-4").glob("1_Dense/*.safetensors"))
    sentences(tmp_path / "ours", DynaQuantCallback(**EXACT), more=[modules.Dense(32, 8)]).train()
    assert "1_Dense" in names(tmp_path / "ours" / "checkpoint-4")
    assert list((tmp_path / "ours" / "checkpoint-4").rglob("*.safetensors")) == []


def test_its_best_model_comes_from_ours(tmp_path):
    best = {"load_best_model_at_end": True, "eval_strategy": "steps", "eval_steps": 2, "save_steps": 2}
    whole = sentences(tmp_path / "whole", **best)
    ours = sentences(tmp_path / "ours", DynaQuantCallback(**EXACT), **best)
    for one in (whole, ours):
        one.train()
    assert everything(ours) == everything(whole)


def test_native_checkpoints_of_it_stay_its_own(tmp_path):
    sentences(tmp_path).train()
    again = sentences(tmp_path, DynaQuantCallback(**EXACT), seed=1)
    seen = {}

    class See(TrainerCallback):
        def on_train_begin(self, args, state, control, model, **kwargs):
            seen["weights"] = model[0].embedding.weight.detach().clone()

    again.add_callback(See)
    again.train(resume_from_checkpoint=str(tmp_path / "checkpoint-4"))
    native = sentence_transformers.SentenceTransformer(str(tmp_path / "checkpoint-4"), device="cpu")
    assert torch.equal(seen["weights"], native[0].embedding.weight)
