"""Whole saves and loads against torch.save and torch.load of the same tensors, on the same disk."""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from dynaquant_core.config import Config, LatticeConfig
from dynaquant_core.errors import StorageError
from dynaquant_core.experiments.bench.timing import Measurement, side_by_side
from dynaquant_core.store import CheckpointStore
from dynaquant_core.store.export import write_natively

__all__ = ["CONFIGS", "disk", "layers", "moved", "saving_stages"]

#: Width of the benchmark's square layers; a model is as many of them as its parameters need.
WIDTH = 1024
#: Method -> the fixed configuration that it is measured with.
CONFIGS: Mapping[str, Any] = {
    "dynaquant": Config(bins=16, protect=0.0005),
    "lattice": LatticeConfig(scale=0.5),
}
#: Delta checkpoints saved, and then loaded in one chain.
LINKS = 5


def layers(parameters: int, seed: int = 0) -> dict[str, Tensor]:
    """float32 matrices with ``parameters`` elements in all, normal with a different scale each.

    The last one is lower than the others are; a row that would not be full is left out.

    Example:
        >>> [tuple(tensor.shape) for tensor in layers(1_100_000).values()]
        [(1024, 1024), (50, 1024)]
    """
    generator = torch.Generator().manual_seed(seed)
    full, rest = divmod(max(parameters, WIDTH), WIDTH**2)
    heights = [WIDTH] * full + [rest // WIDTH] * (rest >= WIDTH)
    return {
        f"layers.{index}.weight": torch.randn(height, WIDTH, generator=generator) * (0.01 + 0.002 * index)
        for index, height in enumerate(heights)
    }


def moved(state: dict[str, Tensor], share: float = 0.02, seed: int = 1) -> dict[str, Tensor]:
    """The state after a stretch of training: every weight moved by ``share`` of its layer's deviation."""
    generator = torch.Generator().manual_seed(seed)
    return {
        name: tensor + share * tensor.std() * torch.randn(tensor.shape, generator=generator).to(tensor.device)
        for name, tensor in state.items()
    }


@contextmanager
def disk() -> Iterator[Path]:
    """An empty folder among the system's temporary files, removed in the end.

    Raises:
        StorageError: the system refused something in it; says where it is and how to have another.
    """
    try:
        with tempfile.TemporaryDirectory(prefix="dynaquant-bench-") as folder:
            yield Path(folder)
    except OSError as error:  # the store's are of this kind too, with their number
        where = tempfile.tempdir or "any of the usual folders"
        reason = error.strerror or (os.strerror(error.errno) if error.errno else str(error))
        raise StorageError(
            f"bench: its files cannot be written among the temporary ones in {where}: {reason}; free some "
            "space there or set TMPDIR to a folder that has more."
        ) from error


def torch_save(state: dict[str, Tensor], path: Path) -> None:
    """torch.save, then fsync: what a careful user does today."""
    with path.open("wb") as file:
        write_natively(state, file)
        file.flush()
        os.fsync(file.fileno())


def saving_stages(count: int, threads: int, method: str, device: str = "cpu") -> Iterator[Measurement]:
    """A delta save of tensors on a device, the calling thread's part of it, loading a key and one delta more.

    What is loaded, and what it is compared with, comes to the CPU.
    """
    with disk() as root:
        plain = root / "plain.pt"
        state = {name: tensor.to(device) for name, tensor in layers(count).items()}
        count = sum(tensor.numel() for tensor in state.values())
        torch_save(state, plain)
        store = CheckpointStore(root / "store", method=method, max_chain=16)
        store.save(0, state, config=CONFIGS[method])
        taken = saving(store, state, root / "again.pt", CONFIGS[method]) | loading(store, plain)

        def row(stage: str, against: str, note: str = "") -> Measurement:
            return Measurement(
                stage=stage,
                parameters=count,
                threads=threads,
                device=device,
                seconds=taken[stage],
                against=against,
                speedup=taken[against] / taken[stage],
                megabytes_per_second=4e-6 * count / taken[stage],
                note=note,
            )

        yield row("save (delta)", "torch.save + fsync", f"{method}, ratio {store.info(LINKS).ratio:.1f}")
        yield row("calling thread held", "torch.save + fsync")
        yield row("load (key)", "torch.load")
        yield row("load (each delta link)", "torch.load")


def saving(store: CheckpointStore, state: dict[str, Tensor], plain: Path, config: Any) -> dict[str, float]:
    """Median seconds of `LINKS` saves, each after a move and beside torch.save of the same tensors."""
    names = ("torch.save + fsync", "calling thread held", "save (delta)")
    rows = []
    for step in range(1, LINKS + 1):
        state = moved(state, seed=step)
        started = time.perf_counter()
        torch_save(state, plain)
        rows.append((time.perf_counter() - started, *timed_save(store, step, state, config)))
    columns = dict(zip(names, zip(*rows, strict=True), strict=True))
    return {name: statistics.median(times) for name, times in columns.items()}


def timed_save(
    store: CheckpointStore, step: int, state: dict[str, Tensor], config: Any
) -> tuple[float, float]:
    """Seconds of one save: (until the live tensors may change again, until it is committed)."""
    started = time.perf_counter()
    saving = store.begin(step, state)
    sealed = saving.seal(saving.draft(config))
    held = time.perf_counter() - started
    sealed.write()
    return held, time.perf_counter() - started


def loading(store: CheckpointStore, plain: Path) -> dict[str, float]:
    """Median seconds of loading a key, and of what a link adds, beside torch.load; fresh memory for all."""
    taken = side_by_side(
        {
            "torch.load": lambda: torch.load(plain, map_location="cpu", weights_only=True),
            "load (key)": lambda: store.load(0),
            "chain": lambda: store.load(LINKS),
        },
        fresh=True,
    )
    link = max(1e-9, (taken["chain"] - taken["load (key)"]) / LINKS)
    return taken | {"load (each delta link)": link}
