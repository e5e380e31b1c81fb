"""The models and data of the LC paper's experiments: sizes, what is drawn, what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from dynaquant_core.errors import ConfigError, ExperimentError
from dynaquant_core.experiments import events
from dynaquant_core.experiments.config import expand, load_experiment, validate
from dynaquant_core.experiments.config.small import DigitData, PointData, RatingsData
from dynaquant_core.experiments.data import fingerprint, open_data
from dynaquant_core.experiments.data.points import drawn_points
from dynaquant_core.experiments.data.ratings import drawn_ratings
from dynaquant_core.experiments.job import Job
from dynaquant_core.experiments.models import build
from dynaquant_core.experiments.process import work
from dynaquant_core.experiments.trainer import Trainer
from tests.experiments.rework_kit import settings

DRAWN = RatingsData(name="ratings", noise=0.5)


@pytest.mark.parametrize(
    ("config", "parameters"),
    [("mlr", 7850), ("lenet5", 61_706), ("alexnet", 451_106), ("factorisation", 12_000)],
)
def test_the_models_have_the_sizes_that_the_configs_name(config: str, parameters: int) -> None:
    model = build(load_experiment(f"lc/{config}"), 10)
    assert sum(parameter.numel() for parameter in model.parameters()) == parameters


def test_alexnet_grows_to_the_published_channels() -> None:
    run = load_experiment("lc/alexnet", ["model.width=64"])
    with torch.device("meta"):
        model = build(run, 10)
    shapes = [tuple(own.shape[:2]) for name, own in model.named_parameters() if own.dim() > 1]
    convolutions = [(64, 1), (192, 64), (384, 192), (256, 384), (256, 256)]
    assert shapes == [*convolutions, (4096, 9 * 256), (4096, 4096), (10, 4096)]


@pytest.mark.parametrize("config", ["mlr", "lenet5", "alexnet", "factorisation"])
def test_the_models_learn(config: str, real_data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DYNAQUANT_DATA", str(real_data))
    changes = ["data.batch=32", "data.search_images=100", "data.train_images=64"]
    run = expand(load_experiment(f"lc/{config}", [] if config == "factorisation" else changes))[0]
    trainer = Trainer(run)
    losses = [trainer.advance() for _ in range(20)]
    assert np.mean(losses[-4:]) < 0.95 * np.mean(losses[:4])


def test_ratings_are_drawn_as_stated() -> None:
    pairs, values = drawn_ratings(DRAWN)
    assert len(values) == 50_000 == len({(int(user), int(item)) for user, item in pairs})
    assert pairs.min() == 0
    assert pairs.max(0).tolist() == [999, 499]
    assert values.mean() == pytest.approx(0, abs=0.05)
    assert values.var() == pytest.approx(1 + 0.5**2, rel=0.1), "a product of variance 1, and the noise"
    counts = np.bincount(pairs[:, 0], minlength=1000)
    assert counts.var() == pytest.approx(50 * 0.9, rel=0.3), "evenly: no user rates more than chance has it"


def test_the_noise_is_all_that_a_model_of_the_true_rank_cannot_explain() -> None:
    """Alternating least squares on a dense, small matrix reaches the noise's level, and rank - 1 does not."""
    section = RatingsData(
        name="ratings", users=60, items=60, rank=3, noise=0.1, density=1.0,
        batch=100, search_ratings=100, heldout_ratings=100,
    )  # fmt: skip
    pairs, values = drawn_ratings(section)
    matrix = np.empty((60, 60))
    matrix[pairs[:, 0], pairs[:, 1]] = values
    singular = np.linalg.svd(matrix, compute_uv=False)
    assert singular[2] > 10 * singular[3]
    assert singular[3] < 0.1 * 2.2 * np.sqrt(60), "the largest singular value of the noise alone"


def test_one_draw_is_one_data_set_whatever_the_seed_of_the_run() -> None:
    again, other = drawn_ratings(DRAWN), drawn_ratings(DRAWN.model_copy(update={"draw": 1}))
    assert all(np.array_equal(*both) for both in zip(drawn_ratings(DRAWN), again, strict=True))
    assert not np.array_equal(other[1], again[1])
    assert fingerprint(DRAWN) != fingerprint(DRAWN.model_copy(update={"draw": 1}))
    data = open_data(DRAWN, evaluation_batch=4000)
    assert [len(values) for _, values in data.search] == [3334, 3333, 3333]
    heldout = {tuple(pair.tolist()) for pairs, _ in data.heldout for pair in pairs}
    trained = {tuple(pair.tolist()) for step in range(10) for pair in data.batch(0, step)[0]}
    assert len(heldout) == 5000
    assert len(trained) == 10 * 4096, "an epoch repeats nothing"
    assert not heldout & trained
    assert not torch.equal(data.batch(0, 0)[0], data.batch(1, 0)[0])


def test_points_are_labelled_as_stated() -> None:
    """Without noise the labels are a linear map's: least squares on the classes finds them again."""
    section = PointData(name="points", noise=0.0, points=4000, search_points=500, heldout_points=500)
    points, labels = drawn_points(section)
    assert (points.shape, points.dtype, points.std()) == ((5000, 64), np.float32, pytest.approx(1, abs=0.01))
    assert sorted(set(labels.tolist())) == list(range(10))
    solved, *_ = np.linalg.lstsq(points[:4000], np.eye(10)[labels[:4000]], rcond=None)
    assert np.mean((points[4000:] @ solved).argmax(1) == labels[4000:]) > 0.8
    noisy, other = drawn_points(section.model_copy(update={"noise": 1.0}))
    assert np.array_equal(noisy, points)
    assert 0.3 < np.mean(other == labels) < 0.5, "noise as large as the scores decides about half"


def test_points_to_measure_on_are_not_trained_on() -> None:
    section = PointData(name="points", points=128, search_points=30, heldout_points=40)
    data = open_data(section, evaluation_batch=20)
    trained = torch.cat([data.batch(0, step)[0] for step in range(2)])
    measured = torch.cat([points for points, _ in [*data.search, *data.heldout]])
    assert [len(points) for points, _ in data.search] == [15, 15]
    assert len(torch.unique(torch.cat([trained, measured]), dim=0)) == 128 + 70
    assert not torch.equal(data.batch(0, 0)[0], data.batch(1, 0)[0])
    assert fingerprint(section) != fingerprint(section.model_copy(update={"draw": 1}))


def test_digits_are_mnist(real_data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DYNAQUANT_DATA", str(real_data))
    data = open_data(DigitData(name="mnist", batch=512, search_images=300), evaluation_batch=200)
    images, labels = data.batch(0, 3)
    assert (images.shape, images.dtype, labels.dtype) == ((512, 1, 28, 28), torch.float32, torch.int64)
    assert (float(images.mean()), float(images.std())) == pytest.approx((0, 1), abs=0.05)
    assert (data.classes, [len(own) for own, _ in data.search]) == (10, [150, 150])
    assert torch.equal(images, data.batch(0, 3)[0])
    assert not torch.equal(images, data.batch(0, 4)[0])


def npz(path: Path, **changes: Any) -> str:
    arrays = {
        "x_train": np.zeros((20, 28, 28), np.uint8),
        "y_train": np.arange(20) % 10,
        "x_test": np.zeros((20, 28, 28), np.uint8),
        "y_test": np.arange(20) % 10,
    } | changes
    np.savez(path, **{name: own for name, own in arrays.items() if own is not None})
    return str(path)


@pytest.mark.parametrize(
    ("arrays", "section", "message"),
    [
        ({"y_test": None}, {}, r"has no array 'y_test'; expected x_train"),
        ({"x_train": np.zeros((20, 32, 32), np.uint8)}, {}, r"expected uint8\[n, 28, 28\]"),
        ({"x_test": np.zeros((20, 28, 28), np.float32)}, {}, r"holds images float32"),
        ({"y_train": np.arange(19)}, {}, r"with a whole number each"),
        ({}, {"search_images": 30}, r"30 search and 5 held-out images are more than the 20 test images"),
        ({}, {"train_images": 21}, r"21 training images asked for in batches of 4, found 20"),
    ],
)
def test_a_source_that_is_no_digits_is_one_line(
    tmp_path: Path, arrays: dict[str, Any], section: dict[str, Any], message: str
) -> None:
    source = npz(tmp_path / "digits.npz", **arrays)
    asked = {"batch": 4, "search_images": 5, "heldout_images": 5} | section
    with pytest.raises(ExperimentError, match=message):
        open_data(DigitData(name="mnist", source=source, **asked), evaluation_batch=5)


def test_a_source_that_is_no_npz_is_one_line(tmp_path: Path) -> None:
    path = tmp_path / "digits.npz"
    path.write_bytes(b"no zip")
    with pytest.raises(ExperimentError, match="not an npz file"):
        open_data(DigitData(name="mnist", source=str(path)), evaluation_batch=5)
    with pytest.raises(ExperimentError, match="exists neither"):
        open_data(DigitData(name="mnist", source=str(tmp_path / "gone.npz")), evaluation_batch=5)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model": {"name": "mlr"}}, r"model 'mlr' reads data 'mnist', not 'ratings'"),
        ({"data": {"name": "ratings", "density": 0.01}}, r"make 5000 ratings; 10000 to train on"),
        ({"data": {"name": "ratings", "density": 0}}, r"data.density: expected greater than 0"),
        ({"data": {"name": "ratings", "source": "movielens"}}, r"data.source: expected 'drawn'"),
        (
            {"model": {"name": "mlp"}, "data": {"name": "points", "points": 9}},
            r"9 points to train on are less than a batch of 64",
        ),
        ({"model": {"name": "factorisation", "rank": 0}}, r"model.rank: expected greater than or equal to 1"),
    ],
)
def test_a_bad_model_or_data_is_one_line(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        validate(settings(**changes), "tiny")


def test_what_trains_here_trains_under_the_other_kinds_too(tmp_path: Path) -> None:
    changes = {"kind": "train", "rework": None, "method": "exact", "checkpoint_every": 8}
    job = Job(tmp_path / "run", expand(validate(settings(**changes), "x"))[0], saves=True)
    job.write()
    work(job, None)
    diary = events.read(job.diary)
    assert [event["step"] for event in events.find(diary, "checkpoint")] == [8, 16]
    assert events.find(diary, "final")[0]["value"] > 0
