"""Whole saves and loads against torch.save and torch.load of the same tensors, on the same disk."""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor

from dynaquant_core.config import Config
from dynaquant_core.experiments.bench.timing import Measurement, median_seconds, samples
from dynaquant_core.store import CheckpointStore

__all__ = ["layers", "moved", "saving_stages"]

#: Width of the benchmark's square layers; a model is as many of them as its parameters need.
WIDTH = 1024
CONFIG = Config(bins=16, protect=0.0005)


def layers(parameters: int, seed: int = 0) -> dict[str, Tensor]:
    """float32 matrices with about ``parameters`` elements in all, normal with a different scale each."""
    generator = torch.Generator().manual_seed(seed)
    count = max(1, round(parameters / WIDTH**2))
    return {
        f"layers.{index}.weight": torch.randn(WIDTH, WIDTH, generator=generator) * (0.01 + 0.002 * index)
        for index in range(count)
    }


def moved(state: dict[str, Tensor], share: float = 0.02, seed: int = 1) -> dict[str, Tensor]:
    """The state after a stretch of training: every weight moved by ``share`` of its layer's deviation."""
    generator = torch.Generator().manual_seed(seed)
    return {
        name: tensor + share * tensor.std() * torch.randn(tensor.shape, generator=generator)
        for name, tensor in state.items()
    }


def torch_save(state: dict[str, Tensor], path: Path) -> None:
    """torch.save, then fsync: what a careful user does today."""
    with path.open("wb") as file:
        torch.save(state, file)
        file.flush()
        os.fsync(file.fileno())


def saving_stages(count: int, threads: int) -> Iterator[Measurement]:
    """A delta save, the calling thread's part of it, loading a key and one delta more."""
    with tempfile.TemporaryDirectory(prefix="dynaquant-bench-") as folder:
        root = Path(folder)
        states = [layers(count)]
        for step in range(1, 6):
            states.append(moved(states[-1], seed=step))
        plain = root / "plain.pt"
        rival = median_seconds(lambda: torch_save(states[0], plain), runs=3, limit=20)
        store = CheckpointStore(root / "store", max_chain=16)
        store.save(0, states[0], config=CONFIG)
        taken = [timed_save(store, step, states[step]) for step in range(1, 6)]

        def row(stage: str, seconds: float, against: str, baseline: float, note: str = "") -> Measurement:
            return Measurement(
                stage=stage,
                parameters=count,
                threads=threads,
                device="cpu",
                seconds=seconds,
                against=against,
                speedup=baseline / seconds,
                megabytes_per_second=4e-6 * count / seconds,
                note=note,
            )

        held, total = (statistics.median(column) for column in zip(*taken, strict=True))
        note = f"ratio {store.info(5).ratio:.1f}"
        yield row("save (delta)", total, "torch.save + fsync", rival, note)
        yield row("calling thread held", held, "torch.save + fsync", rival)
        yield from loading(store, plain, row_of=row)


def timed_save(store: CheckpointStore, step: int, state: dict[str, Tensor]) -> tuple[float, float]:
    """Seconds of one save: (until the live tensors may change again, until it is committed)."""
    started = time.perf_counter()
    saving = store.begin(step, state)
    sealed = saving.seal(saving.draft(CONFIG))
    held = time.perf_counter() - started
    sealed.write()
    return held, time.perf_counter() - started


def loading(store: CheckpointStore, plain: Path, row_of: object) -> Iterator[Measurement]:
    """Loading a key checkpoint, and what each delta link adds, against torch.load of the same tensors."""
    assert callable(row_of)
    rival = median_seconds(lambda: torch.load(plain, weights_only=True), runs=5, limit=10)
    key = median_seconds(lambda: store.load(0), runs=5, limit=10)
    chain = sorted(samples(lambda: store.load(5), 3, 10.0))[1]
    yield row_of("load (key)", key, "torch.load", rival)
    yield row_of("load (each delta link)", max(1e-9, (chain - key) / 5), "torch.load", rival)
