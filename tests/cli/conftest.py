"""One store for the commands that only look; a fresh copy for those that write."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch

from tests.cli.words import Shell, filled_store, training_state


@pytest.fixture
def shell(capsys: pytest.CaptureFixture[str]) -> Shell:
    return Shell(capsys)


@pytest.fixture(scope="session")
def looked_at(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three checkpoints; tests must not change it."""
    return filled_store(tmp_path_factory.mktemp("cli") / "store")


@pytest.fixture
def store(looked_at: Path, tmp_path: Path) -> Path:
    """A copy of it that a test may change."""
    return Path(shutil.copytree(looked_at, tmp_path / "store"))


@pytest.fixture
def native(tmp_path: Path) -> Path:
    """A training's state as torch.save writes it."""
    path = tmp_path / "native.pt"
    torch.save(training_state(), path)
    return path
