"""The stages that see every value: importance, codes, lattice and offsets, moments, planes, the delta."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import numpy as np
import torch
import zstandard
from torch import Tensor

from dynaquant_core.coding import codec_by_name
from dynaquant_core.delta.cyclic import cyclic_delta
from dynaquant_core.experiments.bench.codes import code_calls, importance_calls
from dynaquant_core.experiments.bench.stages import read, weights_like
from dynaquant_core.experiments.bench.timing import Call, Measurement, side_by_side
from dynaquant_core.quantize import blocks
from dynaquant_core.quantize.lattice.offsets import offset_key, offsets
from dynaquant_core.quantize.lattice.quantise import dequantise, quantise

__all__ = ["value_stages"]

#: A step of the lattice, for weights that spread by about 0.03.
STEP = 2.0**-7

#: Offsets that are made at a time where only they are timed.
TILE = 1 << 15

#: Levels of a cyclic delta.
LEVELS = 16


def value_stages(count: int, threads: int) -> Iterator[Measurement]:
    """Importance and codes, lattice, moments, planes and delta on ``count`` values.

    Offsets are said in nanoseconds of one thread too: they are all that dithering costs.
    """
    values = weights_like(count)
    for make in (importance_calls, code_calls, lattice_calls, moment_calls, byte_calls):
        calls = make(values)
        timed: dict[str, Call] = {"read pass": partial(read, values)}
        for stage, (call, against, rival) in calls.items():
            timed |= {stage: call, f"{against} for {stage}": rival}
        taken = side_by_side(timed)
        for stage, (_, against, _) in calls.items():
            seconds = taken[stage]
            yield Measurement(
                stage=stage,
                parameters=count,
                threads=threads,
                device="cpu",
                seconds=seconds,
                floor_ratio=seconds / taken["read pass"],
                against=against,
                speedup=taken[f"{against} for {stage}"] / seconds,
                megabytes_per_second=4e-6 * count / seconds,
                note=f"{1e9 * seconds * threads / count:.2f} ns a value and thread",
            )
        del calls, timed  # before the next group takes memory for its own


def lattice_calls(values: Tensor) -> dict[str, tuple[Call, str, Call]]:
    """Symbols of weights, weights of symbols, the offsets in both; against torch with draws of its own."""
    count, key = values.numel(), offset_key(0, "bench")
    codes, out = np.zeros(count, np.uint8), torch.zeros(count)
    escapes = quantise(values, STEP, key, codes)
    assert escapes is not None  # weights of this spread have symbols at this step
    tile = torch.zeros(TILE)
    tiles_of_torch = partial(in_tiles, count, lambda size, _: torch.rand(size, out=tile[:size]))
    draws, symbols = torch.zeros(count), torch.zeros(count, dtype=torch.uint8)

    def drawn() -> None:
        torch.rand(count, out=draws)
        symbols.copy_(torch.div(values, STEP, out=out).sub_(draws).add_(128.5).round_())

    def decoded() -> None:
        torch.rand(count, out=draws)
        out.copy_(symbols).sub_(128.5).add_(draws).mul_(STEP)

    return {
        "lattice quantise": (partial(quantise, values, STEP, key, codes), "torch rand + round", drawn),
        "lattice decode": (partial(dequantise, codes, escapes, STEP, key, out), "torch rand + mul", decoded),
        "lattice offsets": (partial(in_tiles, count, partial(offsets, key)), "torch.rand", tiles_of_torch),
    }


def in_tiles(count: int, make: Callable[[int, int], object]) -> None:
    """Makes ``count`` values (how many, from which on) in parts that stay in a cache, as quantising does."""
    for start in range(0, count, TILE):
        make(min(TILE, count - start), start)


def moment_calls(values: Tensor) -> dict[str, tuple[Call, str, Call]]:
    """Moments in blocks of 8 and 4 bits; against a search in as many levels, and a look-up in them."""
    calls: dict[str, tuple[Call, str, Call]] = {}
    levels = torch.linspace(-1, 1, 255)
    found, out = torch.zeros(values.numel(), dtype=torch.int64), torch.zeros_like(values)
    search = partial(torch.bucketize, values, levels, out=found)
    take = partial(torch.take, levels, found.random_(255), out=out)
    for bits, grid in ((8, blocks.EIGHT), (4, blocks.FOUR)):
        codes, scales = blocks.encode(values, True, grid)
        calls[f"moments {bits} bits encode"] = (
            partial(blocks.encode, values, True, grid),
            "torch.bucketize",
            search,
        )
        calls[f"moments {bits} bits decode"] = (
            partial(blocks.decode, codes, scales, out, grid),
            "torch.take",
            take,
        )
    return calls


def byte_calls(values: Tensor) -> dict[str, tuple[Call, str, Call]]:
    """Lossless planes of values that moved a little since the base, and the delta of their codes."""
    base = values.numpy()
    moved = (base * np.float32(1 + 2.0**-12)).astype(np.float32)
    codes = np.random.default_rng(0).integers(0, LEVELS, (2, base.size), np.uint8)
    packer, planes = zstandard.ZstdCompressor(level=3), codec_by_name("planes_xor")
    return {
        "planes + xor encode": (
            partial(planes.encode, moved, base),
            "zstd-3",
            lambda: packer.compress(moved.tobytes()),
        ),
        "cyclic delta": (
            partial(cyclic_delta, codes[0], codes[1], levels=LEVELS),
            "NumPy",
            lambda: (codes[1] - codes[0]) % LEVELS,
        ),
    }
