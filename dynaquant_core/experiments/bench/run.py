"""Runs all stages for each size and number of threads, and collects the rows."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from dynaquant_core.config import require, require_choice
from dynaquant_core.errors import ExperimentError
from dynaquant_core.experiments.bench.cuda import cuda_stages
from dynaquant_core.experiments.bench.saving import CONFIGS, saving_stages
from dynaquant_core.experiments.bench.stages import coding_stages, tensor_stages
from dynaquant_core.experiments.bench.timing import Measurement
from dynaquant_core.experiments.bench.values import value_stages
from dynaquant_core.methods.registry import DEFAULT_METHOD
from dynaquant_core.threads import cores

__all__ = ["run_bench"]

#: Of a parameter: float32, and two moments.
LEAST_BYTES = 12
#: Parameters below which a stage is over before it can be timed.
LEAST_SIZE = 1000

#: More than any machine has; each is a thread of the system.
MOST_THREADS = 1024

logger = logging.getLogger(__name__)


def run_bench(
    sizes: Sequence[int] = (1_000_000, 10_000_000, 50_000_000),
    threads: Sequence[int] = (1, 2),
    *,
    method: str = DEFAULT_METHOD,
    device: str = "all",
    progress: Callable[[str], None] | None = None,
) -> dict[str, Any]:
    """Measures every stage; see the package for what counts.

    Args:
        sizes: float32 parameters of the tensors and models measured.
        threads: numbers of threads to allow, one pass each.
        method: that saves and loads are measured with, one of `saving.CONFIGS`.
        device: where the weights lie: "cpu"; "cuda"; or "all", which is both where there is a CUDA device.
        progress: called with a line before each group of stages.

    Returns:
        {"environment", "rows": one mapping a `Measurement`, "process": figures of a process of its own}.

    Raises:
        ConfigError: there is no fixed configuration for the method, no such device, or a size or a number of
            threads is more than a machine has.
        ExperimentError: the measuring child process failed.
    """
    require_choice("bench", "method", method, tuple(CONFIGS))
    require_choice("bench", "device", device, ("all", "cpu", "cuda"))
    require(
        device != "cuda" or torch.cuda.is_available(),
        "bench: there is no CUDA device here; leave --device out, or run it where there is one.",
    )
    require(
        min(sizes) >= LEAST_SIZE,
        f"bench: sizes must be {LEAST_SIZE:,} parameters or more, got {min(sizes):,}.",
    )
    _require_room(max(sizes))
    most = max(threads)
    require(most <= MOST_THREADS, f"bench: threads must be {MOST_THREADS} or less, got {most}.")
    say = progress or logger.info
    rows: list[Measurement] = []
    for count in threads:
        with thread_limit(count):
            for size in sizes:
                rows += measured(size, count, method, device, say)
    kinds = () if device == "cuda" else ("weights", "adam", "search")
    if kinds:
        say("peak memory and first save, in a process of their own")
    return {
        "environment": environment(),
        "rows": [row.as_dict() for row in rows],
        "process": {what: child_figures(max(sizes), what, method) for what in kinds},
    }


def _require_room(size: int) -> None:
    """Refuses what surely does not fit, before minutes of smaller sizes."""
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    require(
        size * LEAST_BYTES <= memory,
        f"bench: {size:,} parameters with Adam's moments take {size * LEAST_BYTES:,} bytes, more than the "
        f"{memory:,} of this machine's memory; give smaller sizes.",
    )


def measured(
    size: int, threads: int, method: str, device: str, say: Callable[[str], None]
) -> Iterator[Measurement]:
    """All rows of one size under one number of threads."""
    told = f"{size:,} parameters, {threads} thread{'s' if threads > 1 else ''}"
    if device != "cuda":
        say(f"{told}: stages")
        yield from tensor_stages(size, threads)
        yield from value_stages(size, threads)
        if threads == 1:
            yield from coding_stages(size, threads)
        say(f"{told}: saving and loading")
        yield from saving_stages(size, threads, method)
    if device != "cpu" and torch.cuda.is_available():
        say(f"{told}: on the CUDA device")
        yield from cuda_stages(size, threads)
        yield from saving_stages(size, threads, method, "cuda")


@contextmanager
def thread_limit(count: int) -> Iterator[None]:
    """Allows ``count`` threads to DynaQuant and to torch."""
    before, torch_before = os.environ.get("DYNAQUANT_THREADS"), torch.get_num_threads()
    os.environ["DYNAQUANT_THREADS"] = str(count)
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(torch_before)
        if before is None:
            del os.environ["DYNAQUANT_THREADS"]
        else:
            os.environ["DYNAQUANT_THREADS"] = before


def child_figures(parameters: int, what: str, method: str) -> dict[str, Any]:
    """Peak memory and first-save figures, measured in a fresh process with a warm kernel cache."""
    module = "dynaquant_core.experiments.bench.child"
    command = [sys.executable, "-m", module, str(parameters), what, method]
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603
    if done.returncode != 0:
        reason = done.stderr.strip().splitlines()[-1:] or ["no message"]
        raise ExperimentError(f"bench: the measuring process failed with exit {done.returncode}: {reason[0]}")
    figures: dict[str, Any] = json.loads(done.stdout)
    return figures


def environment() -> dict[str, Any]:
    """What the figures depend on."""
    return {
        "torch": torch.__version__,
        "cpus": cores(),
        "cuda": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
    }
