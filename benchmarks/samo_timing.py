"""How `samo.py` times a step: by its parts, and in turns with a dense one."""

from __future__ import annotations

import copy
import statistics
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from samo_nets import Data, adamw, build, loss_of
from torch import nn
from typing_extensions import Self

from dynaquant_core.experiments.data.dataset import Batch
from dynaquant_core.memory import samo
from dynaquant_core.memory.samo.engine import Engine
from dynaquant_core.memory.samo.gradients import Collector


class Stopwatch:
    """Adds up the seconds that a method takes, while it is on."""

    def __init__(self, owner: type, method: str) -> None:
        self.seconds = 0.0
        self._owner, self._method, self._true = owner, method, getattr(owner, method)

    def __enter__(self) -> Self:
        def timed(*args: Any, **kwargs: Any) -> Any:
            start = time.perf_counter()
            try:
                return self._true(*args, **kwargs)
            finally:
                self.seconds += time.perf_counter() - start

        setattr(self._owner, self._method, timed)
        return self

    def __exit__(self, *_: object) -> None:
        setattr(self._owner, self._method, self._true)


def timed_step(model: nn.Module, optimizer: torch.optim.Optimizer, batch: Batch) -> dict[str, float]:
    """Seconds of one step by part: forward and backward, compress, optimizer, expand."""
    with Stopwatch(Collector, "collect") as compress, Stopwatch(Engine, "expand") as expand:
        start = time.perf_counter()
        optimizer.zero_grad()
        loss_of(model, batch).backward()
        between = time.perf_counter()
        optimizer.step()
        end = time.perf_counter()
    return {
        "compute": between - start - compress.seconds,
        "compress": compress.seconds,
        "optimizer": end - between - expand.seconds,
        "expand": expand.seconds,
        "step": end - start,
    }


def in_turns(
    sides: Sequence[Callable[[Batch], dict[str, float]]], data: Data, steps: int
) -> list[dict[str, float]]:
    """Medians of each side's parts; a step of one, a step of the other; the first fifth is not counted."""
    taken: list[list[dict[str, float]]] = [[] for _ in sides]
    for step in range(steps):
        for side, found in zip(sides, taken, strict=True):
            found.append(side(data.batch(step)))
    counted = [found[steps // 5 :] for found in taken]
    return [{part: statistics.median(one[part] for one in found) for part in found[0]} for found in counted]


def against_dense(
    name: str,
    sparsity: float,
    data: Data,
    steps: int,
    parallel: Callable[[nn.Module], nn.Module] | None = None,
) -> tuple[samo.Samo, dict[str, Any]]:
    """A dense model and its pruned copy in turns, float32.

    Args:
        name: of the net.
        sparsity: share pruned.
        data: what both train on, the same batches.
        steps: of each side.
        parallel: goes around the dense model, such as DDP; None: nothing does.

    Returns:
        The handle of the pruned copy; and what every row says of the two: their parts, and step over step.
    """
    dense = build(name)
    model = copy.deepcopy(dense)
    if parallel is not None:  # after the copy: SAMO averages over the ranks itself and refuses DDP
        dense = parallel(dense)
    its, optimizer = adamw(dense), adamw(model)
    handle = samo.wrap(model, optimizer, sparsity=sparsity, embeddings=True, dtype=torch.float32)
    sides = (partial(timed_step, dense, its), partial(timed_step, model, optimizer))
    plain, ours = in_turns(sides, data, steps)
    return handle, {"dense": plain, "samo": ours, "step_ratio": ours["step"] / plain["step"]}
