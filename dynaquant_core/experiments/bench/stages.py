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
from dynaquant_core.experiments.bench.timing import Measurement, best_of, median_seconds
from dynaquant_core.quantize.buckets import BitBuckets
from dynaquant_core.quantize.codebook import lookup
from dynaquant_core.quantize.kmeans import exact
from dynaquant_core.quantize.kmeans.weights import bucket_weights
from dynaquant_core.quantize.partition import Cut
from dynaquant_core.quantize.seam import assign, histogram
from dynaquant_core.quantize.sketch import Sketch
from dynaquant_core.threads import map_threads, slices

__all__ = ["coding_stages", "tensor_stages"]

#: Rivals slower than this many elements allow are given the first ones only, and scaled.
RIVAL_LIMIT = 4_000_000

SIGMA = DynaQuantOptions().sigma


def weights_like(count: int, seed: int = 0) -> Tensor:
    """Normal float32[count] with a heavy tail, the shape of a trained layer's weights."""
    generator = torch.Generator().manual_seed(seed)
    body = torch.randn(count, generator=generator) * 0.02
    tail = torch.rand(count, generator=generator) < 0.01
    return torch.where(tail, body * 4, body)


def floor_seconds(values: Tensor) -> float:
    """Seconds of one read pass over the values on the allowed threads."""
    words = values.view(torch.int32).numpy().view(np.uint32)
    parts = slices(words.size, 1 << 16)
    return best_of(lambda: map_threads(lambda part: read_pass(words[part]), parts), runs=9)


def tensor_stages(count: int, threads: int) -> Iterator[Measurement]:
    """Sketch, K-means and code look-up of ``count`` float32 weights."""
    values = weights_like(count)
    floor = floor_seconds(values)
    nbytes = 4.0 * count

    def row(stage: str, seconds: float, against: str = "", rival: float | None = None) -> Measurement:
        return Measurement(
            stage=stage,
            parameters=count,
            threads=threads,
            device="cpu",
            seconds=seconds,
            floor_ratio=seconds / floor,
            against=against,
            speedup=None if rival is None else rival / seconds,
            megabytes_per_second=nbytes / seconds / 1e6,
        )

    yield row("read pass", floor)
    signed = BitBuckets(signed=True)
    ours = median_seconds(lambda: histogram(values, signed))
    for name, rival in sketch_rivals(values).items():
        yield row("sketch", ours, name, rival)
    yield from kmeans_stages(values, signed, threads)
    counts = histogram(values, signed)
    used = np.flatnonzero(counts)
    centres = fit(signed.values[used], counts[used], 16)
    table = lookup(centres, signed)
    cut = Cut(float("inf"), float("inf"), -1.0, "magnitude")
    ours = median_seconds(lambda: assign(values, None, cut, table, signed))
    yield row("code look-up", ours, "torch.bucketize", bucketize_seconds(values, centres))


def sketch_rivals(values: Tensor) -> dict[str, float]:
    """Seconds of the usual ways to a quantile, scaled to all values where only a part was given."""
    part = values[:RIVAL_LIMIT]
    scale = values.numel() / part.numel()
    array = part.numpy()

    def logarithmic() -> Tensor:
        keys = torch.ceil(torch.log(part.abs() + 1e-30) / np.log(101 / 99)).to(torch.int64)
        return torch.bincount(keys - keys.min())

    calls: dict[str, Callable[[], object]] = {
        "np.quantile": lambda: np.quantile(array, 0.995),
        "torch.quantile": lambda: torch.quantile(part, 0.995),
        "torch log + ceil + bincount": logarithmic,
    }
    return {name: scale * median_seconds(call, runs=2, limit=2.0) for name, call in calls.items()}


def fit(values: NDArray[np.float64], counts: NDArray[np.int64], bins: int) -> NDArray[np.float32]:
    """Centres by exact K-means on a sketch."""
    weights = bucket_weights(values, counts, SIGMA)
    return np.asarray(exact.solve(values, weights, bins).centres(bins), dtype=np.float32)


def kmeans_stages(values: Tensor, signed: BitBuckets, threads: int) -> Iterator[Measurement]:
    """Exact K-means for every K up to 32 on the sketch, against scikit-learn on the raw points."""
    sketch = Sketch(signed, histogram(values, signed))
    used = np.flatnonzero(sketch.counts)
    centres, counts = signed.values[used], sketch.counts[used]
    weights = bucket_weights(centres, counts, SIGMA)
    seconds = median_seconds(lambda: exact.solve(centres, weights, 32), runs=7)
    rival, name = None, ""
    try:
        from sklearn.cluster import KMeans
    except ImportError:
        note = f"{used.size} buckets; scikit-learn is not installed"
    else:
        part = values[: min(values.numel(), RIVAL_LIMIT // 2)].numpy().reshape(-1, 1)
        name, note = "scikit-learn, K = 16 only", f"{used.size} buckets; rival on {part.size} points"
        rival = median_seconds(lambda: KMeans(16, n_init=1, random_state=0).fit(part), runs=1)
    yield Measurement(
        stage="K-means, all K <= 32",
        parameters=values.numel(),
        threads=threads,
        device="cpu",
        seconds=seconds,
        against=name,
        speedup=None if rival is None else rival / seconds,
        note=note,
    )


def bucketize_seconds(values: Tensor, centres: NDArray[np.float32]) -> float:
    """Seconds of torch.bucketize for the same codes, scaled to all values."""
    part = values[:RIVAL_LIMIT]
    edges = torch.from_numpy((centres[1:] + centres[:-1]) / 2)
    seconds = median_seconds(lambda: torch.bucketize(part, edges), runs=3)
    return seconds * values.numel() / part.numel()


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
