"""What the paper's own runs are made of, on tiny instances: pictures, tokens, any model of transformers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml

from dynaquant_core.errors import ConfigError, ExperimentError
from dynaquant_core.experiments import run_experiment
from dynaquant_core.experiments.config import Experiment, expand, load_experiment, shipped_configs, validate
from dynaquant_core.experiments.data import fingerprint, open_data
from dynaquant_core.experiments.data.dataset import IGNORED
from dynaquant_core.experiments.models import build
from dynaquant_core.experiments.models.bottleneck import BottleneckNet
from dynaquant_core.experiments.pretraining import content, pretraining, put_weights, read_weights
from dynaquant_core.experiments.trainer import Trainer
from dynaquant_core.methods.registry import resolve_method
from tests.experiments.test_sentences import reviews, settings

__all__ = ["reviews"]

PAPER = sorted(name for name in shipped_configs() if name.startswith("paper/"))


@pytest.fixture
def pictures(workplace: Path) -> Path:
    """The data root, with two classes of PNGs of odd sizes: red and blue ones."""
    image = pytest.importorskip("PIL.Image", reason="pictures need the extra plots")
    root = workplace.parent / "data" / "pictures"
    for part, count in (("train", 6), ("val", 5)):
        for name, colour in (("red", (250, 5, 5)), ("blue", (5, 5, 250))):
            (root / part / name).mkdir(parents=True)
            for number in range(count):
                image.new("RGB", (40 + number, 33), colour).save(root / part / name / f"{number}.png")
    return root


def picture_settings(**changes: Any) -> dict[str, Any]:
    data = {"name": "image_folder", "source": "pictures", "side": 32, "batch": 4}
    data |= {"search_images": 4, "heldout_images": 6} | changes.pop("data", {})
    return {
        "name": "tiny",
        "model": {"name": "bottleneck", "widths": [4, 4], "depths": [1, 1]},
        "data": data,
        "optimizer": {"name": "sgd", "lr": 0.05},
        "steps": 10,
        "checkpoint_every": 5,
    } | changes


def token_settings(**changes: Any) -> dict[str, Any]:
    data = {"name": "tokens", "source": "tokens.bin", "vocabulary": 40, "batch": 4, "context": 8}
    data |= {"search_tokens": 64, "heldout_tokens": 64} | changes.pop("data", {})
    return {
        "name": "tiny",
        "model": {"name": "hf", "path": "gpt2"},
        "data": data,
        "optimizer": {"name": "adamw", "lr": 0.01, "schedule": "constant"},
        "steps": 10,
        "checkpoint_every": 5,
    } | changes


@pytest.fixture
def texts(workplace: Path) -> Path:
    """The data root, with tokens in both formats and two saved models."""
    transformers = pytest.importorskip("transformers", reason="these models need the extra transformers")
    root = workplace.parent / "data"
    tokens = (np.arange(3000) % 7 + 5).astype(np.uint16)
    tokens.tofile(root / "tokens.bin")
    np.save(root / "tokens.npy", tokens.astype(np.int32))
    size = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    bert = transformers.BertConfig(vocab_size=40, **size)
    gpt2 = transformers.GPT2Config(vocab_size=40, n_embd=16, n_layer=1, n_head=2, n_positions=32)
    transformers.BertForMaskedLM(bert).save_pretrained(root / "bert")
    transformers.GPT2LMHeadModel(gpt2).save_pretrained(root / "gpt2")
    return root


@pytest.mark.parametrize("name", PAPER)
def test_every_run_of_the_papers_is_valid(name: str) -> None:
    runs = expand(load_experiment(name))
    for run in runs:
        resolve_method(run.method)
        assert run.threshold in {0.01, 0.05}
        if run.kind == "transfer":
            assert pretraining(run).kind == "train"
    assert all(run.failures == (10 if run.kind == "train" else 0) for run in runs)
    if not name.endswith(".small"):
        assert f"{name}.small" in PAPER or name == "paper/transfer_bert_large_mnli"  # no MNLI to run it on


def test_resnet152_and_vit_l32_have_their_published_sizes() -> None:
    with torch.device("meta"):
        resnet = build(load_experiment("paper/resnet152"), 1000)
        vit = build(load_experiment("paper/vit_l32"), 1000)
    assert sum(p.numel() for p in resnet.parameters()) == 60_192_808  # as in torchvision
    assert 3.04e8 < sum(p.numel() for p in vit.parameters()) < 3.07e8


def test_pictures_are_read_cropped_and_learnt(pictures: Path) -> None:
    run = validate(picture_settings(), "t")
    trainer = Trainer(run)
    data = trainer.data
    inputs, targets = data.batch(3, 1)
    assert (inputs.shape, data.classes) == ((4, 3, 32, 32), 2)
    assert torch.equal((inputs[:, 0].mean((1, 2)) > 0).long(), targets)  # blue, red
    again = open_data(run.data, evaluation_batch=4)
    again.batch(3, 7)
    assert torch.equal(again.batch(3, 1)[0], inputs)
    assert [len(part) for part, _ in data.search] == [4]
    first = trainer.advance()
    assert [trainer.advance() for _ in range(9)][-1] < first


def test_a_vision_transformer_takes_the_side_of_its_data(pictures: Path) -> None:
    model = {"name": "vit", "layers": 1, "width": 16, "heads": 2, "patch": 16}
    trainer = Trainer(validate(picture_settings(model=model, data={"side": 48}), "t"))
    assert np.isfinite(trainer.advance())
    with pytest.raises(ConfigError, match="patch 16 does not divide the 40 pixels"):
        validate(picture_settings(model=model, data={"side": 40}), "t")


def test_other_pictures_of_the_same_sizes_are_other_data(pictures: Path) -> None:
    """A results folder, a recording or a baseline of the one would have stood for the other."""
    data = validate(picture_settings(), "t").data
    path = pictures / "train" / "red" / "0.png"
    path.write_bytes(path.read_bytes() + bytes(20_000))  # which a reader does not look at
    before = fingerprint(data)
    for place in (60, -60):
        content = bytearray(path.read_bytes())
        content[place] ^= 1
        path.write_bytes(content)
        assert fingerprint(data) != before
        before = fingerprint(data)


def test_bad_pictures_are_one_clear_error(pictures: Path) -> None:
    for change, message in (
        ({"source": "nowhere"}, "DYNAQUANT_DATA"),
        ({"source": str(pictures / "train")}, "holds no pictures"),
        ({"search_images": 5}, r"10 validation pictures .* 5 \+ 6 for evaluation"),
    ):
        with pytest.raises(ExperimentError, match=message):
            open_data(validate(picture_settings(data=change), "t").data, evaluation_batch=4)
    before = fingerprint(validate(picture_settings(), "t").data)
    for path in (pictures / "val" / "red").iterdir():
        path.write_bytes(b"no picture")
    assert fingerprint(validate(picture_settings(), "t").data) != before
    with pytest.raises(ExperimentError, match=r"\d.png is no picture"):
        open_data(validate(picture_settings(data={"heldout_images": 6}), "t").data, evaluation_batch=4)


def test_bottlenecks_halve_after_the_first_stage() -> None:
    model = BottleneckNet(classes=3, widths=(2, 4), depths=(1, 2))
    shapes = [tuple(x.shape) for x in _outputs(model)]
    assert shapes == [(1, 8, 16, 16), (1, 16, 8, 8), (1, 16, 8, 8)]


def _outputs(model: BottleneckNet) -> list[torch.Tensor]:
    found: list[torch.Tensor] = []
    for block in model.blocks:
        block.register_forward_hook(lambda module, inputs, output: found.append(output))
    model(torch.zeros(1, 3, 64, 64))
    return found


def test_tokens_are_shifted_or_hidden_and_learnt(texts: Path) -> None:
    trainer = Trainer(validate(token_settings(), "t"))
    inputs, targets = trainer.data.batch(0, 0)
    assert torch.equal(inputs[:, 1:], targets[:, :-1])
    first = trainer.advance()
    assert [trainer.advance() for _ in range(30)][-1] < 0.7 * first
    hidden = {"mask": 0.25, "mask_token": 1, "source": "tokens.npy"}
    masked = Trainer(validate(token_settings(data=hidden, model={"name": "hf", "path": "bert"}), "t"))
    inputs, targets = masked.data.batch(0, 0)
    assert (targets != IGNORED).sum(1).tolist() == [2] * 4
    assert np.isfinite(masked.advance())
    assert type(masked.model.net).__name__ == "BertForMaskedLM"


def test_a_masked_model_is_fine_tuned_on_pairs(texts: Path, reviews: Path) -> None:
    """The paper's transfer: the encoder comes from the file, the head is new, segments are told apart."""
    model = {"name": "hf", "path": "bert", "dropout": 0}
    pairs = settings("stsb", model=model, data={"joined": True, "context": 20})
    own = {"source": "bert/model.safetensors", "evaluate": {"metric": "loss"}}
    own["data"] = token_settings(data={"mask": 0.25, "mask_token": 1})["data"]
    run = validate(pairs | {"kind": "transfer", "pretrained": own}, "t")
    pre, weights = Trainer(pretraining(run)), read_weights(texts / "bert" / "model.safetensors")
    put_weights(pre.model, weights, "the folder")
    assert len(pre.quality(pre.data.search)) == len(pre.data.search)
    older = {name.replace("LayerNorm.weight", "LayerNorm.gamma"): value for name, value in weights.items()}
    assert older.keys() != weights.keys()
    put_weights(pre.model, older, "a folder of BERT's first years")
    tuned = Trainer(run)
    put_weights(tuned.model, pre.model.state_dict(), "the checkpoint")
    word = "bert.embeddings.word_embeddings.weight"
    assert torch.equal(tuned.model.state_dict()[f"net.{word}"], weights[word])
    assert len(tuned.quality(tuned.data.search)) == 1
    assert np.isfinite(tuned.advance())
    tuned.model.eval()
    tokens = torch.tensor([[2, 4, 3, 5, 3]])
    types: list[Any] = []
    tuned.model.net.bert.register_forward_pre_hook(
        lambda module, inputs, named: types.append(named["token_type_ids"]), with_kwargs=True
    )
    assert tuned.model(tokens).shape == (1,)
    assert types[0].tolist() == [[0, 0, 0, 1, 1]]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"source": "verse.txt.npy"}, "DYNAQUANT_DATA"),
        ({"source": "bad.npy"}, "bad.npy holds no tokens"),
        ({"source": "floats.npy"}, r"holds float64\[3\], expected whole numbers"),
        ({"search_tokens": 10_000}, "3000 tokens are too few"),
        ({"vocabulary": 9}, r"holds token 11, outside data.vocabulary \(9\)"),
    ],
)
def test_bad_tokens_are_one_clear_error(texts: Path, change: dict[str, Any], message: str) -> None:
    (texts / "bad.npy").write_bytes(b"no array")
    np.save(texts / "floats.npy", np.zeros(3))
    with pytest.raises(ExperimentError, match=message):
        open_data(validate(token_settings(data=change), "t").data, evaluation_batch=4)


def test_a_bad_model_folder_is_one_clear_error(texts: Path) -> None:
    def made(path: str) -> Experiment:
        return validate(token_settings(model={"name": "hf", "path": path}), "t")

    with pytest.raises(ExperimentError, match="DYNAQUANT_DATA"):
        build(made("nowhere"), 40)
    (texts / "empty").mkdir()
    with pytest.raises(ExperimentError, match=r"empty has no config.json"):
        build(made("empty"), 40)
    (texts / "empty" / "config.json").write_text('{"model_type": "no-such-model"}')
    with pytest.raises(ExperimentError, match="makes no model for causal"):
        build(made("empty"), 40)
    with pytest.raises(ConfigError, match="give mask and mask_token together"):
        validate(token_settings(data={"mask": 0.2}), "t")
    with pytest.raises(ConfigError, match="mask_token 40 is outside the vocabulary of 40"):
        validate(token_settings(data={"mask": 0.2, "mask_token": 40}), "t")


def test_another_config_of_a_model_is_another_training(texts: Path, tiny: dict[str, Any]) -> None:
    """Recordings and baselines are found again by what decides a run, and a results folder is of one."""
    settings = token_settings(kind="replay", method="none", moments="exact")
    Path("tiny.yaml").write_text(yaml.safe_dump(settings), encoding="utf-8")
    (first,) = run_experiment("tiny.yaml").data["runs"]
    config = texts / "gpt2" / "config.json"
    told = json.loads(config.read_text(encoding="utf-8"))
    config.write_text(json.dumps(told | {"n_layer": 2, "activation_function": "relu"}), encoding="utf-8")
    with pytest.raises(ExperimentError, match=r"run on other data than tokens.bin or gpt2/config.json holds"):
        run_experiment("tiny.yaml")
    (second,) = run_experiment("tiny.yaml", ["output=other"]).data["runs"]
    assert second["parameters"] > first["parameters"]
    assert second["final"]["baseline"] != first["final"]["baseline"]
    other = validate(tiny, "t")
    assert content(other) == fingerprint(other.data), "of other models the settings tell all"
