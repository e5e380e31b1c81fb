"""The stages of one tensor: sketch, K-means, code look-up, entropy coding, each against its rivals."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import numpy as np
import torch
import zstandard
from numpy.typing import NDArray
from torch import Tensor

from dynaquant_core.coding import codec_by_name
from dynaquant_core.config import DynaQuantOptions
from dynaquant_core.experiments.bench.kernels import read_pass
from dynaquant_core.experiments.bench.timing import Measurement, median_seconds, side_by_side
from dynaquant_core.quantize.buckets import BitBuckets
from dynaquant_core.quantize.codebook import lookup
from dynaquant_core.quantize.kmeans import exact
from dynaquant_core.quantize.kmeans.weights import bucket_weights
from dynaquant_core.quantize.partition import Cut
from dynaquant_core.quantize.seam import assign, histogram
from dynaquant_core.threads import map_threads, slices

__all__ = ["coding_stages", "tensor_stages"]

#: torch.quantile takes no more values; its time is scaled to all.
QUANTILE_LIMIT = 16_000_000
#: Points given to scikit-learn, which would take minutes for more.
POINTS = 2_000_000

SIGMA = DynaQuantOptions().sigma


def weights_like(count: int, seed: int = 0) -> Tensor:
    """Normal float32[count] with a heavy tail, the shape of a trained layer's weights."""
    generator = torch.Generator().manual_seed(seed)
    body = torch.randn(count, generator=generator) * 0.02
    tail = torch.rand(count, generator=generator) < 0.01
    return torch.where(tail, body * 4, body)


def read(values: Tensor) -> None:
    """One read pass over the values on the allowed threads: the floor of whatever looks at each of them."""
    words = values.view(torch.int32).numpy().view(np.uint32)
    map_threads(lambda part: read_pass(words[part]), slices(words.size, 1 << 16))


def tensor_stages(count: int, threads: int) -> Iterator[Measurement]:
    """Sketch, K-means and code look-up of ``count`` float32 weights."""
    values = weights_like(count)
    signed = BitBuckets(signed=True)
    counts = histogram(values, signed)
    used = np.flatnonzero(counts)
    centres = fit(signed.values[used], counts[used], 16)
    table, cut = lookup(centres, signed), Cut(float("inf"), float("inf"), -1.0, "magnitude")
    edges = torch.from_numpy((centres[1:] + centres[:-1]) / 2)

    def row(stage: str, taken: dict[str, float], against: str = "", scale: float = 1.0) -> Measurement:
        return Measurement(
            stage=stage,
            parameters=count,
            threads=threads,
            device="cpu",
            seconds=taken[stage],
            floor_ratio=taken[stage] / taken["read pass"],
            against=against,
            speedup=scale * taken[against] / taken[stage] if against else None,
            megabytes_per_second=4e-6 * count / taken[stage],
        )

    taken = side_by_side(
        {
            "read pass": partial(read, values),
            "sketch": partial(histogram, values, signed),
            **sketch_rivals(values),
        }
    )
    yield row("read pass", taken)
    yield row("sketch", taken, "np.quantile")
    yield row("sketch", taken, "torch.quantile", max(1.0, count / QUANTILE_LIMIT))
    yield row("sketch", taken, "torch log + ceil + bincount")
    yield kmeans_stage(values, signed.values[used], counts[used], threads)
    # Both write into memory that is there: what fresh pages cost is no stage of either.
    codes, found = np.zeros(count, np.uint8), torch.zeros(count, dtype=torch.int64)
    taken = side_by_side(
        {
            "read pass": partial(read, values),
            "code look-up": partial(assign, values, None, cut, table, signed, out=codes),
            "torch.bucketize": partial(torch.bucketize, values, edges, out=found),
        }
    )
    yield row("code look-up", taken, "torch.bucketize")


def sketch_rivals(values: Tensor) -> dict[str, Callable[[], object]]:
    """The usual ways to a quantile."""
    part, array = values[:QUANTILE_LIMIT], values.numpy()

    def logarithmic() -> Tensor:
        keys = torch.ceil(torch.log(values.abs() + 1e-30) / np.log(101 / 99)).to(torch.int64)
        return torch.bincount(keys - keys.min())

    return {
        "np.quantile": lambda: np.quantile(array, 0.995),
        "torch.quantile": lambda: torch.quantile(part, 0.995),
        "torch log + ceil + bincount": logarithmic,
    }


def fit(values: NDArray[np.float64], counts: NDArray[np.int64], bins: int) -> NDArray[np.float32]:
    """Centres by exact K-means on a sketch."""
    weights = bucket_weights(values, counts, SIGMA)
    return np.asarray(exact.solve(values, weights, bins).centres(bins), dtype=np.float32)


def kmeans_stage(
    values: Tensor, centres: NDArray[np.float64], counts: NDArray[np.int64], threads: int
) -> Measurement:
    """Exact K-means for every K up to 32 on the sketch, against scikit-learn on the raw points."""
    weights = bucket_weights(centres, counts, SIGMA)
    seconds = median_seconds(lambda: exact.solve(centres, weights, 32), runs=7)
    rival, name = None, ""
    try:
        from sklearn.cluster import KMeans
    except ImportError:
        note = f"{centres.size} buckets; scikit-learn is not installed"
    else:
        part = values[:POINTS].numpy().reshape(-1, 1)
        name, note = "scikit-learn, K = 16 only", f"{centres.size} buckets; rival on {part.size} points"
        rival = median_seconds(lambda: KMeans(16, n_init=1, random_state=0).fit(part), runs=1)
    return Measurement(
        stage="K-means, all K <= 32",
        parameters=values.numel(),
        threads=threads,
        device="cpu",
        seconds=seconds,
        against=name,
        speedup=None if rival is None else rival / seconds,
        note=note,
    )


def coding_stages(count: int, threads: int) -> Iterator[Measurement]:
    """Entropy coders on codes of which 6% moved since the base, one thread each, against zstd-3."""
    generator = np.random.default_rng(0)
    base = np.clip(np.rint(generator.normal(10, 2.5, count)), 2, 17).astype(np.uint8)
    moved = generator.random(count) < 0.06
    step = np.where(generator.random(count) < 0.5, 1, -1)
    codes = np.clip(base + moved * step, 2, 17).astype(np.uint8)
    packer, unpacker = zstandard.ZstdCompressor(level=3), zstandard.ZstdDecompressor()
    packed = packer.compress(codes.tobytes())
    rival = {
        "encode": median_seconds(lambda: packer.compress(codes.tobytes()), runs=3),
        "decode": median_seconds(lambda: unpacker.decompress(packed), runs=3),
    }
    for name in ("rans_context", "rans", "huffman", "paper"):
        codec = codec_by_name(name)
        context = base if name in ("rans_context", "paper") else None
        payload = codec.encode(codes, context)
        out = np.empty_like(codes)
        calls: dict[str, Callable[[], object]] = {
            "encode": partial(codec.encode, codes, context),
            "decode": partial(codec.decode, payload, out, context),
        }
        for verb, call in calls.items():
            seconds = median_seconds(call)
            yield Measurement(
                stage=f"{name} {verb}",
                parameters=count,
                threads=threads,
                device="cpu",
                seconds=seconds,
                against=f"zstd-3 {verb}",
                speedup=rival[verb] / seconds,
                megabytes_per_second=count / seconds / 1e6,
                note=f"{len(payload)} bytes, zstd-3 {len(packed)}",
            )
