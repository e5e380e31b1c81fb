"""What torch makes new tensors of, and where, is no matter of a store's."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from dynaquant_core.store import CheckpointStore
from tests.store.kit import is_same
from tests.store.small_run import Run


@pytest.mark.parametrize(
    "method", ["lattice", "dynaquant", "cnr", "qd", "gobo", "topn", "scar", "lc", "excp"]
)
@pytest.mark.parametrize("moments", ["8bit", "compact", "minimal", "sparse"])
def test_the_default_device_of_torch_does_not_matter(tmp_path: Path, method: str, moments: str) -> None:
    run = Run()
    run.train()
    whole = run.numbered()
    with torch.device("meta"):  # stands for any that is not the tensors' own
        store = CheckpointStore(tmp_path, method=method, moments=moments)
        store.save(1, whole)
        store.load()
        again = CheckpointStore(tmp_path)
        again.resume()
        again.save(2, whole)
        loaded = CheckpointStore(tmp_path).load()
    assert loaded["model"]["1.weight"].device.type == "cpu"


@pytest.fixture
def default_dtype() -> Iterator[None]:
    yield
    torch.set_default_dtype(torch.float32)


@pytest.mark.usefixtures("default_dtype")
@pytest.mark.parametrize("moments", ["8bit", "compact", "minimal", "sparse", "second", "none"])
@pytest.mark.parametrize("method", ["lattice", "dynaquant"])
def test_the_default_dtype_of_torch_does_not_matter(tmp_path: Path, method: str, moments: str) -> None:
    run = Run()
    run.train()
    whole = run.numbered()
    CheckpointStore(tmp_path / "usual", method=method, moments=moments).save(1, whole)
    usual = CheckpointStore(tmp_path / "usual").load()
    for dtype in (torch.float16, torch.bfloat16, torch.float64):
        torch.set_default_dtype(dtype)
        path = tmp_path / str(dtype)
        CheckpointStore(path, method=method, moments=moments).save(1, whole)
        assert is_same(CheckpointStore(path).load(), usual)
        assert is_same(CheckpointStore(tmp_path / "usual").load(), usual)
