"""``dynaquant warm``: compiles the kernels and fills Numba's cache before anybody waits for it."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from dynaquant_core.cli.output import write_line
from dynaquant_core.cli.progress import working
from dynaquant_core.coding.registry import codec_by_name
from dynaquant_core.config import Config, LatticeConfig, Metric
from dynaquant_core.errors import StorageError
from dynaquant_core.jit import are_kept
from dynaquant_core.methods.lattice.motion import look_up
from dynaquant_core.store import CheckpointStore

__all__ = ["warm"]

#: Large enough that every codec is worth trying, small enough that compiling is all of the time.
WIDTH = 512

#: Careful enough in the end that a cell takes more than a byte; each twice, for a lattice that stays.
SCALES = (0.5, 0.5, 0.05, 0.05)

#: What symbols and contexts come in.
SYMBOLS = (np.uint8, np.uint16)


def warm() -> None:
    """Compile the kernels of lattice and dynaquant; later processes read them from the cache."""
    if not are_kept():
        raise StorageError(
            "warm: Numba finds no folder it may keep compiled kernels in; set NUMBA_CACHE_DIR to a writable "
            "folder, the one that the jobs will have, and run this again."
        )
    start = time.monotonic()
    with working("compiling kernels"), tempfile.TemporaryDirectory(prefix="dynaquant-") as folder:
        rehearse(
            Path(folder) / "lattice", {"name": "lattice"}, [LatticeConfig(scale=scale) for scale in SCALES]
        )
        metrics: tuple[Metric, ...] = ("magnitude", "sensitivity", "sensitivity")
        points = [Config(prune=0.1, protect=0.005, prune_metric=metric) for metric in metrics]
        for coder in ("auto", "paper"):
            rehearse(Path(folder) / coder, {"name": "dynaquant", "coder": coder}, points)
        rehearse_symbols()
    write_line(f"kernels are compiled and cached ({time.monotonic() - start:.1f} s)")


def rehearse(folder: Path, method: dict[str, Any], points: Sequence[Any]) -> None:
    """Saves a key and deltas of a small state with moments and gradients, restores and saves, twice.

    Args:
        folder: of the store.
        method: as `CheckpointStore` takes it.
        points: the configuration of each save; after the restores the last one and the first.
    """
    generator = torch.Generator().manual_seed(0)
    weights = {
        "attn.weight": torch.randn(WIDTH, WIDTH, generator=generator),
        "fc.weight": torch.randn(WIDTH, WIDTH, generator=generator).bfloat16(),
        "norm.weight": torch.ones(WIDTH),
        "gate.weight": torch.randn(32, 32, generator=generator),  # small ones share their tables
        "head.weight": torch.randn(48, 32, generator=generator),
        "double.weight": torch.randn(64, 64, generator=generator).double(),
    }
    gradients = {name: torch.randn(tensor.shape, generator=generator) for name, tensor in weights.items()}
    store = CheckpointStore(folder, method=method)
    for step, config in enumerate([*points, points[-1], points[0]]):
        if step >= len(points):
            store.load()  # what follows a restore is coded in another way
        state = {"model": weights, "optimizer": moments(weights, generator)}
        store.save(step, state, config=config, gradients=gradients)
        for tensor in weights.values():
            tensor.add_(torch.randn(tensor.shape, generator=generator).to(tensor.dtype), alpha=0.01)
    store.load()


def rehearse_symbols() -> None:
    """Codes rare and frequent symbols in all types that they and their contexts come in.

    Which ones a training has is decided by how far its weights move and how many tensors share their tables.
    """
    generator = np.random.default_rng(0)
    drawn = generator.integers(0, 256, WIDTH * 32)
    for symbols, (wide, context) in product(
        (drawn, np.where(drawn < 4, drawn, 0)), product(SYMBOLS, SYMBOLS)
    ):
        values, known = symbols.astype(wide), (drawn % 3).astype(context)
        for name in ("rans", "rans_context", "huffman", "rle_huffman", "paper"):
            code_and_decode(name, values, None if name == "rans" else known)
        most = 255 if wide is np.uint8 else 256  # contexts that fit a byte, or do not
        look_up(known, np.array([0, 1, most], np.uint16))


def code_and_decode(codec: str, values: NDArray[Any], context: NDArray[Any] | None) -> None:
    """Symbols through a codec and back."""
    payload = codec_by_name(codec).encode(values, context)
    codec_by_name(codec).decode(payload, np.empty_like(values), context)


def moments(weights: dict[str, torch.Tensor], generator: torch.Generator) -> dict[str, Any]:
    """An optimizer's state as Adam would hold it, in the weights' own types."""
    first = [torch.randn(tensor.shape, generator=generator).to(tensor.dtype) for tensor in weights.values()]
    state = {
        index: {"step": torch.tensor(1.0), "exp_avg": value, "exp_avg_sq": value.square()}
        for index, value in enumerate(first)
    }
    return {"state": state, "param_groups": [{"lr": 1e-3, "params": list(state)}]}
