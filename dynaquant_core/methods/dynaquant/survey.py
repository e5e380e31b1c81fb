"""Sketches of one save, taken once and shared by every draft of it (paper sec. 4.2, A.1).

Whatever a candidate configuration needs comes from counts: quantiles for the thresholds, the survivors'
buckets for K-means, and, jointly with the base's codes, the size of the coded stream.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from dynaquant_core.config import Config, DynaQuantOptions
from dynaquant_core.lazy import lazy
from dynaquant_core.methods.base import Hints
from dynaquant_core.methods.dynaquant.counts import SurvivorCounts, spread_of
from dynaquant_core.methods.dynaquant.held import Held
from dynaquant_core.methods.dynaquant.protected import base_patterns, write_protected
from dynaquant_core.methods.dynaquant.sample import LEAST, in_whole, sample, stride_of
from dynaquant_core.quantize import partition, seam
from dynaquant_core.quantize.buckets import BitBuckets, Buckets, LogBuckets
from dynaquant_core.quantize.codebook import FIRST_CENTRE, lookup
from dynaquant_core.quantize.cut import PROTECTED, Cut
from dynaquant_core.quantize.layers import layer_type
from dynaquant_core.quantize.seam import Tally
from dynaquant_core.quantize.sketch import Moments, Sketch, SparseSketch
from dynaquant_core.threads import map_threads

__all__ = ["Survey", "cut_key"]

#: Counts kept for candidates that share cuts, each about a hundred kilobytes.
RECENT = 2048

T = TypeVar("T")

CutKey = tuple[float, float, str]


def cut_key(config: Config) -> CutKey:
    """What of a config decides the thresholds; configs that share it share cuts and tallies."""
    return (config.prune, config.protect, config.prune_metric if config.prune > 0 else "magnitude")


class Survey:
    """Sketches of one state.

    Args:
        state: tensors to be quantised, by name, on their own devices.
        ref: the base's codes, or None.
        hints: gradient EMAs and layer types.
        options: the method's options (which sketch, which energy cap).
        epoch: of the draws of dithered codes; None: codes are those of the nearest centres.
    """

    def __init__(
        self,
        state: Mapping[str, Tensor],
        ref: Held | None,
        hints: Hints,
        options: DynaQuantOptions,
        *,
        epoch: int | None = None,
        sketches_of: Survey | None = None,
    ) -> None:
        self.state, self.ref, self.options, self.epoch = state, ref, options, epoch
        if sketches_of is not None:  # same tensors, another base: the sketches do not depend on it
            self.__dict__["signed"] = sketches_of.signed
            self.__dict__["moments"] = sketches_of.moments
            self.__dict__["scored"] = sketches_of.scored
        self.gradients = {name: hints.gradients[name] for name in state if name in hints.gradients}
        self.types = {
            name: hints.layer_types.get(name) or layer_type(name, tuple(tensor.shape))
            for name, tensor in state.items()
        }
        self._cuts: dict[CutKey, dict[str, Cut]] = {}
        self._counts: OrderedDict[tuple[str, str, Cut], Any] = OrderedDict()
        self._lock = threading.Lock()
        self._total = sum(tensor.numel() for tensor in state.values())

    def buckets(self, *, signed: bool) -> Buckets:
        """The bucket scheme: float bit patterns, or the published logarithmic key."""
        if self.options.sketch == "log":
            return LogBuckets(signed=signed)
        return BitBuckets(self.options.mantissa_bits, signed=signed)

    @lazy
    def signed(self) -> dict[str, SparseSketch]:
        """Signed sketch of every tensor."""
        buckets = self.buckets(signed=True)

        def sketch(tensor: Tensor) -> SparseSketch:
            return SparseSketch.of(Sketch.of(tensor, buckets))

        return dict(zip(self.state, map_threads(sketch, list(self.state.values())), strict=True))

    @lazy
    def moments(self) -> dict[str, Moments]:
        """What stands for each filled bucket of `signed`, and how its values lie about that.

        The first is the mean of the values (published: the bucket's own, as if all were equal to it).  Of a
        large tensor a sample tells, the same on every device; a bucket that it misses keeps its own.
        """

        def moments(name: str) -> Moments:
            sketch = self.signed[name]
            if self.options.profile == "paper":
                return Moments(sketch.buckets.values[sketch.rows], *np.zeros((2, sketch.rows.size)))
            flat = self.state[name].detach().reshape(-1)
            return sketch.moments(sample(flat, max(1, flat.numel() // LEAST)))

        return dict(zip(self.state, map_threads(moments, list(self.state)), strict=True))

    @lazy
    def spreads(self) -> dict[str, tuple[float, float]]:
        """How far every tensor's values spread (`counts.spread_of`; published: their energy about zero)."""
        counted = {name: (sketch.counts, self.moments[name]) for name, sketch in self.signed.items()}
        if self.options.profile == "paper":
            return {
                name: (float(np.dot(counts, own.means**2)), 0.0) for name, (counts, own) in counted.items()
            }
        return {name: spread_of(*each) for name, each in counted.items()}

    def lookup(self, name: str, centres: NDArray[np.float32]) -> NDArray[np.uint8]:
        """The level of each bucket of a tensor under a codebook (`codebook.lookup`)."""
        sketch = self.signed[name]
        stand = sketch.buckets.values.copy()
        stand[sketch.rows] = self.moments[name].means
        return lookup(centres, sketch.buckets, stand)

    def magnitudes(self) -> dict[str, Sketch]:
        """Magnitude sketch of every tensor, folded from the signed one (cheap to make, large to keep)."""
        return {name: sketch.dense().magnitude() for name, sketch in self.signed.items()}

    @lazy
    def scored(self) -> dict[str, tuple[SparseSketch, NDArray[np.float64]]]:
        """Sketch of |g w| and the energy (sum of w^2) in its filled buckets, where a gradient is known."""
        buckets = self.buckets(signed=False)

        def score(name: str) -> tuple[SparseSketch, NDArray[np.float64]]:
            counts, energy = seam.score_histogram(self.state[name], self.gradients[name], buckets)
            sketch = SparseSketch.of(Sketch(buckets, counts))
            return sketch, energy[sketch.rows]

        return dict(zip(self.gradients, map_threads(score, list(self.gradients)), strict=True))

    def sensitivities(self) -> dict[str, tuple[Sketch, NDArray[np.float64]]]:
        """The same with every bucket."""
        return {
            name: (sketch.dense(), sketch.spread(energy)) for name, (sketch, energy) in self.scored.items()
        }

    def cuts(self, config: Config) -> dict[str, Cut]:
        """The thresholds of every tensor under ``config`` (paper 4.2)."""
        key = cut_key(config)
        if key not in self._cuts:
            self._cuts[key] = partition.cuts(
                self.magnitudes(),
                self.sensitivities(),
                self.types,
                prune=config.prune,
                protect=config.protect,
                prune_metric=config.prune_metric,
                energy_cap=self.options.energy_cap,
                prune_scope=self.options.prune_scope,
                keep_zeros=self.options.profile != "paper",
                spreads={name: energy for name, (energy, _) in self.spreads.items()},
            )
        return self._cuts[key]

    def survivors(self, name: str, cut: Cut) -> SurvivorCounts:
        """Weights of a tensor that are neither pruned nor protected, counted by bucket.

        A cut by magnitude is a range of the sketch; one by sensitivity needs a pass over the weights.
        """
        return self.recent(name, cut, "survivors", self._count_survivors)

    def tally(self, name: str, cut: Cut) -> tuple[Tally, float]:
        """Joint counts of survivors by bucket and base code, and how many weights each count stands for.

        States above `SAMPLE` weights are sampled in blocks spread over each tensor.
        """
        return self.recent(name, cut, "tally", self._count_jointly)

    def recent(self, name: str, cut: Cut, what: str, make: Callable[..., T]) -> T:
        """A count made for a recent candidate, or a new one; candidates that share cuts share counts."""
        key = (name, what, cut)
        with self._lock:
            if key in self._counts:
                self._counts.move_to_end(key)
                found: T = self._counts[key]
                return found
        made = make(name, cut)
        with self._lock:
            self._counts[key] = made
            while len(self._counts) > RECENT:
                self._counts.popitem(last=False)
        return made

    def _count_survivors(self, name: str, cut: Cut) -> SurvivorCounts:
        sketch = self.signed[name]
        buckets = sketch.buckets
        if cut.needs_gradient:
            tally, scale = self.tally(name, cut)
            rows, counts = tally.rows, np.rint(tally.survivors * scale).astype(np.int64)
        else:
            stays = ~(cut.pruned(buckets) | cut.protected(buckets))[sketch.rows]
            rows, counts = sketch.rows[stays], sketch.counts[stays]
        means, variances, _ = self.moments[name]
        energy, hidden = self.spreads[name]
        pruned = 0.0 if cut.prunes_zeros_alone(buckets) else self.options.energy_cap
        edges = np.stack((buckets.edges[rows], buckets.edges[rows + 1]), axis=1)
        edges[buckets.values[rows] == 0] = 0.0
        places = np.searchsorted(sketch.rows, rows)
        inside = float(np.dot(counts, variances[places]))
        return SurvivorCounts(means[places], edges, counts, energy, pruned, inside, hidden)

    def _count_jointly(self, name: str, cut: Cut) -> tuple[Tally, float]:
        base = None if self.ref is None else self.ref.coded(name)
        part, slope, stride = self.sampled(name, cut)
        tally = seam.tally(
            part,
            slope,
            cut,
            self.signed[name].buckets,
            None if base is None else sample(base.codes, stride),
            1 if base is None else FIRST_CENTRE + base.centres.size,
            counts=self.signed[name].dense().counts if stride == 1 else None,
        )
        return tally.lean(), self.state[name].numel() / max(1, part.numel())

    def sampled(self, name: str, cut: Cut) -> tuple[Tensor, Tensor | None, int]:
        """(weights, gradient where the cut needs it, stride) of the sample that stands for a tensor."""
        weights = self.state[name].detach().reshape(-1)
        stride = stride_of(weights.numel(), self._total)
        slope = sample(self.gradients[name].detach().reshape(-1), stride) if cut.needs_gradient else None
        return sample(weights, stride), slope, stride

    def protected_bytes(self, name: str, cut: Cut) -> float:
        """Bytes that the tensor's protected weights take, from those of the sample."""
        return self.recent(name, cut, "protected", self._encode_protected)

    def _encode_protected(self, name: str, cut: Cut) -> float:
        part, slope, stride = self.sampled(name, cut)
        buckets = self.signed[name].buckets
        codes, patterns = seam.assign(part, slope, cut, np.zeros(buckets.size, np.uint8), buckets)
        base = None if self.ref is None else self.ref.coded(name)
        before = None
        if base is not None and self.options.coder != "paper":
            before = base_patterns(base, in_whole(np.flatnonzero(codes == PROTECTED), stride))
        payload = write_protected(name, patterns, before).payload if patterns.size else b""
        return len(payload) * self.state[name].numel() / max(1, part.numel())
