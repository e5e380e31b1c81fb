"""The stages around the published codes: what decides them, what is made of them beside a base, and back."""

from __future__ import annotations

from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dynaquant_core.coding.rle import tokens
from dynaquant_core.config import Config, DynaQuantOptions
from dynaquant_core.delta.rearrange import group_sizes, rearrange
from dynaquant_core.experiments.bench.timing import Call
from dynaquant_core.methods.base import Hints
from dynaquant_core.methods.dynaquant.survey import Survey
from dynaquant_core.quantize.buckets import BitBuckets
from dynaquant_core.quantize.seam import gather, score_histogram

__all__ = ["code_calls", "importance_calls"]

#: Levels of a code, of which the first two stand for pruned and protected weights.
LEVELS = 18
#: Of codes, those that moved since the base.
MOVED = 0.06

CONFIG = Config(prune=0.1, protect=0.0005, prune_metric="sensitivity")


def importance_calls(values: Tensor) -> dict[str, tuple[Call, str, Call]]:
    """Sketch of |g w|, and all cuts of a fresh survey; against torch's exact order statistics of the same."""
    count = values.numel()
    gradient = torch.randn(count, generator=torch.Generator().manual_seed(1))
    scores, buckets = torch.zeros(count), BitBuckets(signed=False)
    protect = max(1, round(count * (1 - CONFIG.protect)))
    prune = max(1, round(count * CONFIG.prune))

    def scored(*ranks: int) -> None:
        torch.mul(values, gradient, out=scores).abs_()
        for rank in ranks:
            torch.kthvalue(scores, rank)

    def exact_cuts() -> None:
        scored(protect, prune)
        torch.kthvalue(torch.abs(values, out=scores), protect)

    def cuts() -> object:
        return Survey({"w": values}, None, Hints(gradients={"w": gradient}), DynaQuantOptions()).cuts(CONFIG)

    return {
        "importance scores": (
            partial(score_histogram, values, gradient, buckets),
            "torch |g w| + kthvalue",
            partial(scored, protect),
        ),
        "importance cuts": (cuts, "torch three kthvalues", exact_cuts),
    }


def code_calls(values: Tensor) -> dict[str, tuple[Call, str, Call]]:
    """Differences grouped by source code and cut into runs, as the paper's coder does; weights of codes."""
    count, generator = values.numel(), np.random.default_rng(0)
    base = np.clip(np.rint(generator.standard_normal(count, np.float32) * 2.5 + 10), 2, LEVELS - 1)
    base = base.astype(np.uint8)
    delta = (generator.random(count, np.float32) < MOVED).astype(np.uint8)
    levels, out = np.linspace(-1, 1, LEVELS, dtype=np.float32), torch.zeros(count)
    table, codes, none = torch.from_numpy(levels), torch.from_numpy(base), np.zeros(0, np.uint16)

    def take() -> None:
        out.copy_(table[codes.long()])

    return {
        "rearrange + run lengths": (
            partial(runs, delta, base),
            "NumPy argsort + diff",
            partial(sorted_runs, delta, base),
        ),
        "weights of codes": (partial(gather, base, levels, none, out), "torch table[codes]", take),
    }


def runs(delta: NDArray[np.uint8], base: NDArray[np.uint8]) -> list[NDArray[np.int16]]:
    """Tokens of each group."""
    sizes = group_sizes(base)
    ends = np.cumsum(sizes[sizes > 0])[:-1]
    return [tokens(group) for group in np.split(rearrange(delta, base), ends)]


def sorted_runs(delta: NDArray[np.uint8], base: NDArray[np.uint8]) -> NDArray[np.int64]:
    """Lengths of the runs of the same order, by what is on the shelf."""
    grouped = delta[np.argsort(base, kind="stable")]
    return np.diff(np.flatnonzero(np.diff(grouped)))
