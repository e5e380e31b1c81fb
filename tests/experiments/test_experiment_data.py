"""Batches are a pure function of (seed, step); evaluation sets are fixed and apart from training."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
import torch

from dynaquant_core.errors import ExperimentError
from dynaquant_core.experiments.config.parts import ImageData, TextData
from dynaquant_core.experiments.data import cifar, corpus, fingerprint, open_data
from dynaquant_core.experiments.data.dataset import locate
from dynaquant_core.experiments.data.images import augment, normalise
from dynaquant_core.experiments.data.text import MAX_VOCABULARY, Text, encode


def text_section(**changes: object) -> TextData:
    base = {
        "name": "text",
        "source": "verse.txt",
        "search_tokens": 1024,
        "heldout_tokens": 512,
        "context": 16,
    }
    return TextData.model_validate(base | changes)


def npz(path: Path, **arrays: np.ndarray) -> str:
    np.savez(path, **arrays)
    return str(path)


def raw_images(path: Path, train: int = 30, test: int = 20) -> str:
    rng = np.random.default_rng(1)
    return npz(
        path,
        x_train=rng.integers(0, 256, (train, 32, 32, 3), dtype=np.uint8),
        y_train=np.arange(train, dtype=np.uint8) % 10,
        x_test=rng.integers(0, 256, (test, 32, 32, 3), dtype=np.uint8),
        y_test=np.arange(test, dtype=np.uint8) % 10,
    )


def image_section(source: str, **changes: object) -> ImageData:
    base = {"name": "cifar", "source": source, "batch": 8, "search_images": 8, "heldout_images": 12}
    return ImageData.model_validate(base | changes)


def test_a_batch_depends_on_seed_and_step_only(workplace: Path, tmp_path: Path) -> None:
    sections = (text_section(), image_section(raw_images(tmp_path / "images.npz")))
    for section in sections:
        one, other = (open_data(section, evaluation_batch=4) for _ in range(2))
        for step in (0, 1, 9):
            other.batch(5, step + 3)  # what was drawn before does not matter
            for a, b in zip(one.batch(5, step), other.batch(5, step), strict=True):
                assert torch.equal(a, b)
        assert not torch.equal(one.batch(5, 0)[0], one.batch(5, 1)[0])
        assert not torch.equal(one.batch(5, 0)[0], one.batch(6, 0)[0])


def test_text_targets_are_the_next_characters_and_sets_have_their_sizes(workplace: Path) -> None:
    data = open_data(text_section(), evaluation_batch=8)
    for inputs, targets in (data.batch(0, 0), *data.search, *data.heldout):
        assert torch.equal(inputs[:, 1:], targets[:, :-1])
    assert sum(inputs.numel() for inputs, _ in data.search) >= 1024
    assert sum(inputs.numel() for inputs, _ in data.heldout) >= 512


def test_no_character_is_in_two_of_the_three_sets() -> None:
    text = "".join(chr(0x4E00 + i) for i in range(250))  # every character once
    data = Text(text, text_section(context=4, search_tokens=20, heldout_tokens=20, batch=50), 2)
    seen = [
        {int(code) for inputs, targets in part for code in (*inputs.flatten(), *targets.flatten())}
        for part in (data.search, data.heldout, [data.batch(0, step) for step in range(20)])
    ]
    assert len(seen[0] | seen[1] | seen[2]) == sum(map(len, seen))


def test_the_small_part_of_the_search_set_is_at_most_8k_tokens() -> None:
    text = "to be or not to be, that is the question. " * 3000
    data = Text(text, text_section(context=64, search_tokens=20_000, heldout_tokens=2000), 1000)
    assert 4000 < sum(inputs.numel() for inputs, _ in data.search[: data.part]) <= 8192


def test_rare_characters_share_a_symbol() -> None:
    common = [chr(0x4E00 + i) for i in range(MAX_VOCABULARY - 1)]
    codes, symbols = encode("".join(common) * 2 + "xyz")
    assert symbols == MAX_VOCABULARY
    assert codes[-3:].tolist() == [0, 0, 0]
    assert len(set(codes[: len(common)].tolist())) == len(common)
    assert 0 not in codes[:-3]


def test_the_standard_library_is_always_there_and_bounded() -> None:
    text = corpus.read("stdlib", 200_000)
    assert text == corpus.read("stdlib", 200_000)
    assert len(text.encode()) == 200_000
    assert "def " in text


def test_a_folder_is_read_in_the_order_of_its_names(workplace: Path) -> None:
    folder = workplace / "texts"
    (folder / "sub").mkdir(parents=True)
    (folder / ".hidden").write_text("no", encoding="utf-8")
    for name, text in (("b.txt", "second "), ("a.txt", "first "), ("sub/c.txt", "third")):
        (folder / name).write_text(text, encoding="utf-8")
    assert corpus.read(str(folder), 100) == "first second third"
    assert corpus.read(str(folder), 8) == "first se"


def test_stars_in_a_folders_name_are_understood(workplace: Path) -> None:
    """Below a folder whose own name looks like a pattern, and at any depth; nothing is read twice."""
    folder = workplace.parent / "data" / "own [text]"
    for name in ("b/2.txt", "a/3.txt", "a/1.txt", "a/deep/4.txt"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(name[-5], encoding="utf-8")
    (folder / "a" / "note.md").write_text("no", encoding="utf-8")
    for source in ("own [text]/*/*.txt", str(folder / "*" / "*.txt"), "own*/?/*.txt"):
        assert corpus.read(source, 100) == "132"
    assert corpus.read("own [text]/**/*.txt", 100) == "1342"
    assert corpus.read("own [text]/a/**", 100) == corpus.read("own [text]/a", 100) == "134no"
    with pytest.raises(ExperimentError, match=r"'own \[text\]/\*/\*.csv' matches no file"):
        corpus.read("own [text]/*/*.csv", 100)
    with pytest.raises(ExperimentError, match="two stars must be a whole name"):
        corpus.read("own [text]/a**/*.txt", 100)


@pytest.mark.parametrize(
    ("section", "message"),
    [
        (text_section(source="nowhere.txt"), "DYNAQUANT_DATA"),
        (text_section(source="bytes.bin"), "is not UTF-8 text"),
        (text_section(source="empty.txt"), "holds no text"),
        (text_section(search_tokens=10**6), "too few"),
        (image_section("nowhere.npz"), "DYNAQUANT_DATA"),
        (image_section("verse.txt"), "not an npz file"),
        (image_section("other.npz"), "has no array 'train_jpeg'"),
        (image_section("shapes.npz"), r"expected uint8\[n, 32, 32, 3\]"),
        (image_section("offsets.npz"), r"train_offset float64\[2\]"),
        (image_section("broken.npz"), "train image 0 is not a JPEG file"),
        (image_section("images.npz", heldout_images=100), "more than the 20 test images"),
        (image_section("images.npz", batch=64), "training images"),
        (image_section("images.npz", train_images=31), "training images"),
    ],
)
def test_bad_data_is_one_clear_error(
    workplace: Path, monkeypatch: pytest.MonkeyPatch, section: TextData | ImageData, message: str
) -> None:
    root = workplace.parent / "data"
    (root / "bytes.bin").write_bytes(b"\xff\xfe\x00abc")
    (root / "empty.txt").write_text("", encoding="utf-8")
    raw_images(root / "images.npz")
    npz(root / "other.npz", other=np.zeros(3))
    npz(root / "shapes.npz", **{key: np.zeros((2, 2)) for key in ("x_train", "y_train", "x_test", "y_test")})
    files = {f"{s}_jpeg": np.zeros(9, np.uint8) for s in ("train", "test")}
    offsets = {f"{s}_offset": np.array([0, 9]) for s in ("train", "test")}
    floats = {name: values.astype(np.float64) for name, values in offsets.items()}
    npz(root / "offsets.npz", **files, **floats, train_label=np.zeros(1), test_label=np.zeros(1))
    npz(
        root / "broken.npz",
        **files,
        **offsets,
        **{f"{s}_label": np.zeros(1, np.uint8) for s in ("train", "test")},
    )
    with pytest.raises(ExperimentError, match=message):
        open_data(section, evaluation_batch=4)


def test_jpeg_coded_images_decode_to_what_pillow_says(workplace: Path, tmp_path: Path) -> None:
    image_module = pytest.importorskip("PIL.Image", reason="pictures need the extra plots")
    coded, expected = [], []
    for colour in ((200, 30, 30), (20, 220, 90), (10, 10, 250)):
        buffer = io.BytesIO()
        image_module.new("RGB", (32, 32), colour).save(buffer, "JPEG")
        coded.append(np.frombuffer(buffer.getvalue(), np.uint8))
        expected.append(np.array(image_module.open(buffer).convert("RGB")))
    arrays = {}
    for split in ("train", "test"):
        arrays[f"{split}_jpeg"] = np.concatenate(coded)
        arrays[f"{split}_offset"] = np.cumsum([0, *map(len, coded)])
        arrays[f"{split}_label"] = np.arange(3, dtype=np.uint8)
    pixels = cifar.read(npz(tmp_path / "jpeg.npz", **arrays))
    assert np.array_equal(pixels.train, np.stack(expected))
    assert pixels.test_labels.tolist() == [0, 1, 2]


def test_every_image_is_seen_once_an_epoch(tmp_path: Path) -> None:
    section = image_section(raw_images(tmp_path / "images.npz", train=32), augment=False)
    data = open_data(section, evaluation_batch=5)
    epochs = [torch.cat([data.batch(0, step)[0] for step in range(start, start + 4)]) for start in (0, 4)]
    sums = [np.sort(epoch.sum((1, 2, 3)).numpy()) for epoch in epochs]
    assert np.array_equal(*sums)
    assert not torch.equal(*epochs)
    assert [len(inputs) for inputs, _ in data.heldout] == [4, 4, 4]


def test_augmentation_only_flips_and_shifts() -> None:
    images = np.random.default_rng(0).integers(1, 256, (20, 32, 32, 3), dtype=np.uint8)
    for image, seen in zip(images, augment(images, np.random.default_rng(1)), strict=True):
        padded = [np.pad(turned, ((4, 4), (4, 4), (0, 0))) for turned in (image, image[:, ::-1])]
        crops = (p[y : y + 32, x : x + 32] for p in padded for y in range(9) for x in range(9))
        assert any(np.array_equal(seen, crop) for crop in crops)
    assert normalise(images).shape == (20, 3, 32, 32)


def test_the_fingerprint_follows_the_content(workplace: Path) -> None:
    before = fingerprint(text_section())
    assert before == fingerprint(text_section(batch=3))
    path = workplace.parent / "data" / "verse.txt"
    path.write_text(path.read_text(encoding="utf-8") + "!", encoding="utf-8")
    assert fingerprint(text_section()) != before


def test_a_tilde_is_the_home_folder(workplace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(workplace.parent / "data"))
    monkeypatch.setenv("DYNAQUANT_DATA", "nowhere")
    assert locate("~/verse.txt") == workplace.parent / "data" / "verse.txt"
    assert fingerprint(text_section(source="~/verse.txt")) == fingerprint(text_section(source="~/ver*.txt"))
    with pytest.raises(ExperimentError, match="~nobody-here"):
        locate("~nobody-here/verse.txt")


def test_real_images_have_the_sizes_of_cifar(real_data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DYNAQUANT_DATA", str(real_data))
    section = ImageData(
        name="cifar", source="cifar10/cifar10_lossless_subset.npz", search_images=400, heldout_images=600
    )
    data = open_data(section, evaluation_batch=100)
    inputs, targets = data.batch(0, 0)
    assert (inputs.shape, data.classes, len(targets.unique())) == ((64, 3, 32, 32), 10, 10)
    assert abs(float(inputs.mean())) < 0.5
