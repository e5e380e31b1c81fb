"""Compiles every kernel for a CUDA device that is not there, from the calls that would start it.

Triton brings along all that it takes to make machine code of a kernel; only its start needs a device.  Run as
a program, because tests have Triton interpret kernels.  Prints a JSON list: name, whether anything is
fused or flushed to zero in its code, what tells its code from others, and whether it was compiled by a trial.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import re
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

#: One value, a multiple of 16, and none.
SIZES = [1, SIZE + 8, SIZE]
TRYING: list[str] = []
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
        lines = [line for line in code.splitlines() if not re.match(r"\s*(\.loc|//|\.file)", line)]
        digest = hashlib.sha1("\n".join(lines).partition(".section")[0].encode()).hexdigest()
        found = {
            "name": self.fn.__name__,
            "module": self.fn.__module__.removeprefix("dynaquant_core."),
            "fused": "fma." in code,
            "flushed": ".ftz" in code,
        }
        COMPILED.append({**found, "code": digest, "tried": bool(TRYING)})

    function.run = compiled
    torch.empty = torch.zeros
    torch.Tensor.new_empty = torch.Tensor.new_zeros
    torch.Tensor.pin_memory = lambda self: self


def trusting(trial, name: str) -> None:
    """Has a trial believe what kernels that were not started give."""
    true = getattr(trial, name)

    def right(*given):
        TRYING.append(name)
        try:
            true(*given)
        finally:
            TRYING.pop()
        return True

    setattr(trial, name, right)


def weights(dtype):
    """Of all sizes; of the first dtype at an odd address too."""
    for size in SIZES:
        whole = torch.zeros(size + 1, dtype=dtype)
        yield whole[:size]
        if dtype == FLOATS[0]:
            yield whole[1:]


def compile_seam() -> None:
    """Counts, codes, dithered codes, and back."""
    from dynaquant_core.quantize import seam
    from dynaquant_core.quantize.buckets import BitBuckets, LogBuckets
    from dynaquant_core.quantize.codebook import lookup, table
    from dynaquant_core.quantize.cut import NO_CUT, Cut
    from dynaquant_core.quantize.device import trial
    from dynaquant_core.quantize.dither import Levels, assign_dithered

    trusting(trial, "_right")
    seam.side = lambda tensor: importlib.import_module("dynaquant_core.quantize.device.tried")
    centres = np.linspace(-1, 1, 9, dtype=np.float32)
    cases = [
        (values, one)
        for dtype in FLOATS
        for values in weights(dtype)
        for one in (BitBuckets(6), LogBuckets(0.01))
    ]
    for values, buckets in cases:
        dtype, gradient, base = values.dtype, torch.zeros(values.numel()), np.zeros(values.numel(), np.uint8)
        levels = lookup(centres, buckets)
        seam.histogram(values, buckets)
        seam.score_histogram(values, gradient, buckets.unsigned())
        for cut in (NO_CUT, Cut(protect_sensitivity=0.5)):
            seam.tally(values, gradient, cut, buckets, base, 3)
            codes, kept = seam.assign(values, gradient, cut, levels, buckets)
        seam.gather(codes, table(centres), kept, values)
        for draws in (2**63 + 5, np.zeros(values.numel(), np.float32)):
            assign_dithered(values, None, NO_CUT, Levels.of(centres, dtype, zero=True), buckets, draws)


def compile_lattice() -> None:
    """Symbols and back."""
    from dynaquant_core.quantize.device import trial
    from dynaquant_core.quantize.lattice import tried_path

    trusting(trial, "_right")
    step, none = np.float32(0.5), np.zeros(0, np.int32)
    for dtype, key in product(FLOATS, (np.uint64(3), np.uint64(2**64 - 3))):
        for values in weights(dtype):
            symbols = np.ones(values.numel(), np.uint8)
            tried_path.quantise(values, step, key, symbols)
            tried_path.dequantise(symbols, none, step, key, (np.float32(-9), np.float32(9)), values, [])


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
    """Pruned layers written to their places, and gradients from theirs."""
    from dynaquant_core.memory.samo import device_kernels, groups, trial

    trusting(trial, "_right")
    trusting(trial, "_written")
    trial.agrees(PLACE)

    layers, blocks = torch.zeros(2, 4, dtype=torch.int64), torch.zeros(2, 2, dtype=torch.int32)
    for dtype in WIDE:
        device_kernels.scatter(torch.zeros(SIZE), layers, blocks, dtype, 2048)
    device_kernels.gather(torch.zeros(2, device_kernels.COLUMNS, dtype=torch.int64), 3, 0.5, groups.RUN)


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
