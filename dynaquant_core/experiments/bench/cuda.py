"""The stages that touch every weight on a CUDA device; against CuPy and cuML where they are installed."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator

import numpy as np
import torch
from torch import Tensor

from dynaquant_core.experiments.bench.stages import fit, weights_like
from dynaquant_core.experiments.bench.timing import Measurement, median_seconds
from dynaquant_core.experiments.bench.values import STEP
from dynaquant_core.quantize.buckets import BitBuckets
from dynaquant_core.quantize.codebook import lookup
from dynaquant_core.quantize.codebook import table as level_values
from dynaquant_core.quantize.lattice.offsets import offset_key
from dynaquant_core.quantize.lattice.quantise import dequantise, quantise
from dynaquant_core.quantize.partition import Cut
from dynaquant_core.quantize.seam import assign, gather, histogram

__all__ = ["cuda_stages"]


def finished(call: Callable[[], object]) -> Callable[[], None]:
    """The call, waiting for the device."""

    def run() -> None:
        call()
        torch.cuda.synchronize()

    return run


def cuda_stages(count: int, threads: int = 1) -> Iterator[Measurement]:
    """Sketch, codes and symbols of ``count`` float32 weights on the current CUDA device, and back.

    Codes end in host memory, so the floor of a save is the copy of the weights themselves that it spares.
    """
    values = weights_like(count).cuda()
    floor = median_seconds(finished(values.sum))
    signed = BitBuckets(signed=True)

    def row(stage: str, seconds: float, against: str = "", rival: float | None = None) -> Measurement:
        return Measurement(
            stage=stage,
            parameters=count,
            threads=threads,
            device="cuda",
            seconds=seconds,
            floor_ratio=seconds / floor,
            against=against,
            speedup=None if rival is None else rival / seconds,
        )

    yield row("read pass", floor)
    ours = median_seconds(finished(lambda: histogram(values, signed)))
    name, rival = cupy_quantile(values)
    yield row("sketch", ours, name, rival)
    counts = histogram(values, signed)
    used = counts.nonzero()[0]
    centres = fit(signed.values[used], counts[used], 16)
    table, cut = lookup(centres, signed), Cut(float("inf"), float("inf"), -1.0, "magnitude")
    edges = torch.from_numpy((centres[1:] + centres[:-1]) / 2).cuda()
    rival = median_seconds(finished(lambda: torch.bucketize(values, edges)))
    ours = median_seconds(finished(lambda: assign(values, None, cut, table, signed)))
    yield row("code look-up", ours, "torch.bucketize", rival)
    codes, _ = assign(values, None, cut, table, signed)
    to_host = median_seconds(values.cpu)
    to_device = median_seconds(finished(values.cpu().cuda))
    out, exact = torch.empty_like(values), np.zeros(0, np.uint16)
    levels = level_values(centres)
    ours = median_seconds(finished(lambda: gather(codes, levels, exact, out)))
    yield row("weights of codes", ours, "copy of float32 to the device", to_device)
    symbols, key = np.zeros(count, np.uint8), offset_key(0, "bench")
    escapes = quantise(values, STEP, key, symbols)
    assert escapes is not None  # weights of this spread have symbols at this step
    ours = median_seconds(lambda: quantise(values, STEP, key, symbols))
    yield row("lattice quantise", ours, "copy of float32 to the host", to_host)
    ours = median_seconds(finished(lambda: dequantise(symbols, escapes, STEP, key, out)))
    yield row("lattice decode", ours, "copy of float32 to the device", to_device)
    name, rival = cuml_kmeans(values)
    if rival is not None:
        ours = median_seconds(lambda: fit(signed.values[used], counts[used], 16))
        yield row("K-means, K = 16", ours, name, rival)


def cupy_quantile(values: Tensor) -> tuple[str, float | None]:
    """Seconds of CuPy's quantile on the same values, where CuPy is installed."""
    try:
        cupy = importlib.import_module("cupy")
    except ImportError:
        return "", None
    array = cupy.asarray(values)
    return "cupy.quantile", median_seconds(finished(lambda: cupy.quantile(array, 0.995)))


def cuml_kmeans(values: Tensor) -> tuple[str, float | None]:
    """Seconds of cuML's K-means (K = 16) on the same values, where cuML is installed."""
    try:
        cluster = importlib.import_module("cuml.cluster")
    except ImportError:
        return "", None
    points = values.reshape(-1, 1)
    return "cuML KMeans", median_seconds(lambda: cluster.KMeans(n_clusters=16).fit(points), runs=2)
