"""Super steps in a run: merged by the thread that writes, and never a reason to stop."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from dynaquant_core.methods.base import Reference, Stream, StreamSource
from dynaquant_core.methods.lc import Lc
from dynaquant_core.training import Checkpointer


class Watched(Lc):
    """Says on which threads it merged."""

    def __init__(self, *, broken: bool = False) -> None:
        super().__init__(super_step=2)
        self.threads: list[str] = []
        self.broken = broken

    def merge(self, links: Sequence[StreamSource], base: Reference) -> list[Stream]:
        self.threads.append(threading.current_thread().name)
        if self.broken:
            raise RuntimeError("broken")
        return super().merge(links, base)


def model_and_optimizer() -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(3)
    model = torch.nn.Sequential(torch.nn.Linear(32, 32), torch.nn.ReLU(), torch.nn.Linear(32, 16))
    return model, torch.optim.AdamW(model.parameters(), lr=0.01)


def train(
    checkpoints: Checkpointer, model: torch.nn.Module, optimizer: torch.optim.Optimizer, steps: int
) -> None:
    data = torch.randn(64, 32, generator=torch.Generator().manual_seed(5))
    for _ in range(steps):
        optimizer.zero_grad()
        model(data).square().mean().backward()
        optimizer.step()
        checkpoints.step()


@pytest.mark.parametrize("broken", [False, True])
def test_links_are_merged_on_the_worker_and_a_run_goes_on_from_them(
    tmp_path: Path, broken: bool, caplog: pytest.LogCaptureFixture
) -> None:
    method = Watched(broken=broken)
    model, optimizer = model_and_optimizer()
    with Checkpointer(tmp_path, model, optimizer, every=1, method=method, keep_last=1) as checkpoints:
        train(checkpoints, model, optimizer, 6)
        checkpoints.wait()
        assert method.threads
        assert set(method.threads) == {"dynaquant-save"}
        assert len(checkpoints.store.steps()) == (6 if broken else 4)
        assert ("could not be merged: broken" in caplog.text) == broken
    fresh, other = model_and_optimizer()
    with Checkpointer(tmp_path, fresh, other, every=1, method=Watched(), keep_last=1) as checkpoints:
        assert checkpoints.restore() == 6
        train(checkpoints, fresh, other, 2)
        checkpoints.wait()
        assert checkpoints.store.verify(deep=True) == []
        assert checkpoints.store.newest().step == 8


def test_a_run_that_goes_on_without_a_method_goes_on_merging(tmp_path: Path) -> None:
    """It is the method of the checkpoint that was restored, and its files were forgotten to be merged."""
    model, optimizer = model_and_optimizer()
    merging = {"name": "lc", "super_step": 3}
    with Checkpointer(tmp_path, model, optimizer, every=1, method=merging, keep_last=1) as checkpoints:
        train(checkpoints, model, optimizer, 2)
    for begun in (2, 5):  # the second of these lives learns it from what the first has written
        fresh, other = model_and_optimizer()
        with Checkpointer(tmp_path, fresh, other, every=1, keep_last=1, max_chain=20) as checkpoints:
            assert checkpoints.restore() == begun
            train(checkpoints, fresh, other, 3)
            checkpoints.wait()
            assert checkpoints.store.method.super_step == 3
            assert checkpoints.store.verify(deep=True) == []
    assert len(checkpoints.store.steps()) <= 4, "key, two super steps and a link, or fewer"
    with Checkpointer(tmp_path, fresh, other, every=1, method="lc", keep_last=1) as checkpoints:
        assert checkpoints.restore() == 8
        train(checkpoints, fresh, other, 1)
        checkpoints.wait()
        assert checkpoints.store.newest().kind == "delta", "a chain goes on when it changes"
        assert checkpoints.store.method.super_step == 0
