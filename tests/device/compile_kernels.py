"""Compiles every kernel for a CUDA device that is not there, from the calls that would start it.

Triton brings along all that it takes to make machine code of a kernel; only its start needs a device.  Run as
a program, because tests have Triton interpret kernels.  Prints a JSON list: name, and whether anything is
fused or flushed to zero in its code.
"""

from __future__ import annotations

import importlib
import json
import sys
from itertools import product
from types import SimpleNamespace

import numpy as np
import torch
import triton
from triton.backends.compiler import GPUTarget

TARGET = GPUTarget("cuda", 90, 32)
PLACE = torch.device("cpu")
WIDE = [torch.float32, torch.bfloat16, torch.float16]
FLOATS = [*WIDE, torch.float64]
SIZE = 5000
COMPILED: list[dict[str, object]] = []


def pretend() -> None:
    """From here on kernels are compiled for the target, and not started; all new memory is zero."""
    driver = SimpleNamespace(
        get_current_device=lambda: 0, get_current_stream=lambda _: 0, get_current_target=lambda: TARGET
    )
    triton.runtime.driver.set_active(driver)
    function = triton.runtime.jit.JITFunction
    run = function.run

    def compiled(self, *args, warmup, **named):
        kernel = run(self, *args, warmup=True, **named)
        code = kernel.asm["ptx"]
        COMPILED.append({"name": self.fn.__name__, "fused": "fma." in code, "flushed": ".ftz" in code})

    function.run = compiled
    torch.empty = torch.zeros
    torch.Tensor.new_empty = torch.Tensor.new_zeros
    torch.Tensor.pin_memory = lambda self: self


def compile_seam() -> None:
    """Counts, codes, dithered codes, and back."""
    from dynaquant_core.quantize import seam
    from dynaquant_core.quantize.buckets import BitBuckets, LogBuckets
    from dynaquant_core.quantize.codebook import lookup, table
    from dynaquant_core.quantize.cut import NO_CUT, Cut
    from dynaquant_core.quantize.dither import Levels, assign_dithered

    seam.side = lambda tensor: importlib.import_module("dynaquant_core.quantize.device.path")
    centres, base = np.linspace(-1, 1, 9, dtype=np.float32), np.zeros(SIZE, np.uint8)
    for dtype, buckets in product(FLOATS, (BitBuckets(6), LogBuckets(0.01))):
        values, gradient = torch.zeros(SIZE, dtype=dtype), torch.zeros(SIZE)
        levels = lookup(centres, buckets)
        seam.histogram(values, buckets)
        seam.score_histogram(values, gradient, buckets.unsigned())
        for cut in (NO_CUT, Cut(protect_sensitivity=0.5)):
            seam.tally(values, gradient, cut, buckets, base, 3)
            codes, kept = seam.assign(values, gradient, cut, levels, buckets)
        seam.gather(codes, table(centres), kept, values)
        for draws in (2**63 + 5, np.zeros(SIZE, np.float32)):
            assign_dithered(values, None, NO_CUT, Levels.of(centres, dtype, zero=True), buckets, draws)


def compile_lattice() -> None:
    """Symbols and back."""
    from dynaquant_core.quantize.lattice import device_path

    for dtype, key in product(FLOATS, (np.uint64(3), np.uint64(2**64 - 3))):
        values, symbols, step = torch.zeros(SIZE, dtype=dtype), np.ones(SIZE, np.uint8), np.float32(0.5)
        device_path.quantise(values, step, key, symbols)
        device_path.dequantise(symbols, np.zeros(0, np.int32), step, key, np.float32(9), values, [])


def compile_smaq() -> None:
    """Packed maps: looked at, coded, read, and values that are not zero apart."""
    from dynaquant_core.memory.smaq.device import look, path, survey_kernels, zeros
    from dynaquant_core.memory.smaq.levels import Levels
    from dynaquant_core.memory.smaq.statistics import Statistics

    levels, statistics = Levels(), Statistics(0.0, 1.0)
    tables = levels.tables(0.0, 1.0)
    for dtype in FLOATS:
        values = torch.zeros(SIZE, dtype=dtype)
        look.DeviceLook.of(values)
        draft = look.DeviceLook.of(values, levels).draft
        for key in (7, 2**63 + 7):
            mask, inner, outer, counts = path.encode(values, levels, statistics, key, None, draft)
            path.settle(values, levels, statistics, key, tables, dtype)
        path.encode(values, levels, statistics, 7)
        path.read(mask, inner, outer, counts, levels, tables, SIZE, slice(0, len(counts)), dtype)
        kept, mask = zeros.split(values, torch.zeros(len(counts), dtype=torch.float64), SIZE)
        zeros.join(kept, mask, SIZE)
    assert survey_kernels.combine


def compile_samo() -> None:
    """Pruned layers written to their places."""
    from dynaquant_core.memory.samo import device_kernels

    layers, blocks = torch.zeros(2, 4, dtype=torch.int64), torch.zeros(2, 2, dtype=torch.int32)
    for dtype in WIDE:
        device_kernels.scatter(torch.zeros(SIZE), layers, blocks, dtype, 2048)
    device_kernels.gather(torch.zeros(2, device_kernels.COLUMNS, dtype=torch.int64), 3, 0.5, 2048)


def compile_two_bit() -> None:
    """Codes of gradients, and their sum."""
    from dynaquant_core.comm.two_bit import device_kernels

    for dtype in WIDE:
        packed = device_kernels.encode(torch.zeros(SIZE), torch.zeros(SIZE, dtype=dtype), 0.5, 0.25)
    device_kernels.decode_sum(packed.expand(2, -1), SIZE, 0.5, 0.25, 2.0)


def compile_probe() -> None:
    """What tries Triton on a device."""
    from dynaquant_core import device_probe

    numbers, words = torch.zeros(64), torch.zeros(512, dtype=torch.uint8)
    device_probe._try[(1,)](
        numbers.bfloat16(), numbers.double(), numbers, words, size=64, enable_fp_fusion=False
    )


if __name__ == "__main__":
    pretend()
    for part in (compile_probe, compile_two_bit, compile_samo, compile_smaq, compile_lattice, compile_seam):
        part()
    sys.stdout.write(json.dumps(COMPILED) + "\n")
