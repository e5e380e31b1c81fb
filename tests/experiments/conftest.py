"""A tiny experiment on text that is made here: a run of it takes seconds."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml

from dynaquant_core.experiments.config import validate
from dynaquant_core.experiments.results import Results
from tests.experiments.diary_kit import diary, entry

DATA = Path(os.environ.get("DYNAQUANT_DATA", "../shared/data")).absolute()


@pytest.fixture
def workplace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty current folder, with a data root that holds ``verse.txt``."""
    return enter_workplace(tmp_path, monkeypatch)


def enter_workplace(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Makes ``folder`` the place of an experiment, or comes back to it."""
    root, place = folder / "data", folder / "place"
    root.mkdir(exist_ok=True)
    words = ["the ", "cat ", "sat ", "on ", "a ", "mat.\n", "it ", "slept, ", "then ", "ran "]
    chosen = np.random.default_rng(0).integers(0, len(words), 8000)
    (root / "verse.txt").write_text("".join(words[i] for i in chosen), encoding="utf-8")
    monkeypatch.setenv("DYNAQUANT_DATA", str(root))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")  # models this small only wait for a second thread
    place.mkdir(exist_ok=True)
    monkeypatch.chdir(place)
    return place


@pytest.fixture
def one_thread() -> Iterator[None]:
    """This process computes as the training processes do, to the bit."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def tiny() -> dict[str, Any]:
    """Settings of a run of a few seconds: 40 steps, a checkpoint every 10."""
    return tiny_settings()


def tiny_settings() -> dict[str, Any]:
    """The same, for fixtures of a whole module."""
    return {
        "name": "tiny",
        "model": {"name": "char_gpt", "layers": 1, "width": 32, "heads": 2},
        "data": {
            "name": "text",
            "source": "verse.txt",
            "batch": 4,
            "context": 16,
            "search_tokens": 1024,
            "heldout_tokens": 1024,
        },
        "optimizer": {"name": "adamw", "lr": 0.003},
        "steps": 40,
        "checkpoint_every": 10,
        "evaluate": {"metric": "loss", "batch": 16},
    }


@pytest.fixture
def tiny_file(workplace: Path, tiny: dict[str, Any]) -> Path:
    """The tiny experiment as a YAML file."""
    path = workplace / "tiny.yaml"
    path.write_text(yaml.safe_dump(tiny), encoding="utf-8")
    return path


@pytest.fixture
def results(tmp_path: Path, tiny: dict[str, Any]) -> Results:
    """Of a run that was killed once; nothing is written yet."""
    run = entry(tiny, diary((10, 2.9)))
    config = validate(tiny | {"name": "a.b"}, "tiny").as_dict()
    return Results(
        tmp_path / "results.json", {"config": config, "environment": {"cpu": "<x>"}, "runs": [run]}
    )


@pytest.fixture(scope="session")
def real_data() -> Path:
    """Folder with the real data sets."""
    if not DATA.is_dir():
        pytest.skip(f"no real data at {DATA}: set DYNAQUANT_DATA")
    return DATA
