"""Thresholds of all tensors of a model from their sketches (paper sec. 4.2).

Protection: one threshold per metric over all non-embedding weights together, and one over the embeddings.
Pruning: one threshold per layer type (or tensor, or one for all); embeddings are never pruned; a tensor never
loses more than a share of its own energy to the threshold it shares (ours: a small tensor among large ones
would lose everything), nor of its energy about its mean (one far from zero, what tells its values apart).

Guarantees, ties included: each protection rule takes at most its share and falls short of it by less than the
weights of one bucket; so does pruning, whatever the distribution.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from dynaquant_core.config import Metric, PruneScope
from dynaquant_core.errors import ConfigError
from dynaquant_core.quantize.cut import NO_CUT, Cut
from dynaquant_core.quantize.sketch import Sketch

__all__ = ["NO_CUT", "Cut", "capped", "cuts", "protection_threshold", "pruning_threshold"]

Energy = NDArray[np.float64]
Scored = tuple[Sketch, Energy]


def protection_threshold(sketches: Iterable[Sketch], share: float) -> float:
    """The threshold that at most ``share`` of all values lie strictly above: their (1 - share) quantile.

    Args:
        sketches: unsigned sketches, merged here.
        share: F_prot, in [0, 1).

    Returns:
        The largest member of a bucket; inf where nothing can be protected (share 0, or too few values).

    Example:
        >>> import torch
        >>> from dynaquant_core.quantize.buckets import BitBuckets
        >>> sketch = Sketch.of(torch.linspace(0, 1, 1001), BitBuckets(6, signed=False))
        >>> 0.9 <= protection_threshold([sketch], 0.1) < 0.91
        True
    """
    merged = merge(sketches)
    if merged is None or share <= 0.0:
        return math.inf
    above = merged.total - np.cumsum(merged.counts)
    index = int(np.argmax(above <= share * merged.total))
    return float(merged.buckets.limits[index]) if above[index] > 0 else math.inf


def pruning_threshold(sketches: Iterable[Sketch], share: float) -> float:
    """The threshold that at most ``share`` of all values lie at or below: their share quantile.

    Args:
        sketches: unsigned sketches, merged here.
        share: F_prun, in [0, 1).

    Returns:
        The largest member of a bucket; -1 where nothing can be pruned.

    Example:
        >>> import torch
        >>> from dynaquant_core.quantize.buckets import BitBuckets
        >>> sketch = Sketch.of(torch.full((9,), 0.5), BitBuckets(6, signed=False))
        >>> pruning_threshold([sketch], 0.5)
        -1.0
    """
    merged = merge(sketches)
    if merged is None or share <= 0.0:
        return -1.0
    below = np.cumsum(merged.counts)
    fitting = int(np.searchsorted(below, share * merged.total, side="right"))
    if fitting == 0 or below[fitting - 1] == 0:
        return -1.0
    return float(merged.buckets.limits[fitting - 1])


def capped(
    threshold: float, sketch: Sketch, energy: Energy | None, cap: float, spread: float = math.inf
) -> float:
    """The threshold lowered until what it prunes of this tensor holds at most ``cap`` of its energy (ours).

    Args:
        threshold: shared pruning threshold, or -1.
        sketch: the tensor's own, over the pruning metric.
        energy: float64[size], sum of w^2 in each bucket; None where the metric is magnitude, and the buckets'
            own edges bound it.
        cap: largest share of the tensor's energy, in [0, 1]; 1 switches the rule off.
        spread: the tensor's energy about its mean, where that is known; the smaller one counts.

    Returns:
        The largest member of a bucket, at most ``threshold``; -1 where even the lowest bucket is too much.
    """
    if threshold < 0.0 or cap >= 1.0:
        return threshold
    if energy is None:
        lost, whole = edge_energies(sketch)
    else:
        lost, whole = energy, float(energy.sum())
    limits = sketch.buckets.limits
    shared = int(np.searchsorted(limits, np.float32(threshold), side="right"))
    own = int(np.searchsorted(np.cumsum(lost), cap * min(whole, spread), side="right"))
    lowest = min(shared, own)
    return float(limits[lowest - 1]) if lowest > 0 else -1.0


def cuts(
    magnitudes: Mapping[str, Sketch],
    sensitivities: Mapping[str, Scored],
    layer_types: Mapping[str, str],
    *,
    protect: float,
    prune: float,
    prune_metric: Metric = "magnitude",
    energy_cap: float = 0.02,
    prune_scope: PruneScope = "layer_type",
    keep_zeros: bool = False,
    spreads: Mapping[str, float] | None = None,
) -> dict[str, Cut]:
    """Thresholds of every tensor (paper 4.2).

    Args:
        magnitudes: unsigned sketch of |w| of every tensor.
        sensitivities: (unsigned sketch of |g w|, energy by bucket) of the tensors whose gradient is known;
            others are protected by magnitude only and not pruned by sensitivity.
        layer_types: type of every tensor (`layers`).
        protect: share F_prot, in [0, 1).
        prune: share F_prun, in [0, 1).
        prune_metric: what pruning goes by.
        energy_cap: see `capped`.
        prune_scope: who shares a pruning threshold: tensors of a type (the paper's), nobody, or all.
        keep_zeros: zeros are pruned whatever the share, so that they come back as zeros (ours): where more
            weights are zero than may be pruned, the published rule prunes none.
        spreads: energy about its mean of every tensor, for `capped`.

    Returns:
        One `Cut` per name in ``magnitudes``.

    Raises:
        ConfigError: pruning by sensitivity without any gradient.
    """
    if prune > 0.0 and prune_metric == "sensitivity" and not sensitivities:
        raise ConfigError(
            "quantize: prune_metric='sensitivity' needs gradients and there are none; "
            "pass gradients or prune by magnitude."
        )
    scores = {name: sketch for name, (sketch, _) in sensitivities.items()}
    protections = protection_cuts(magnitudes, scores, layer_types, protect)
    groups = {name: _group(name, kind, prune_scope) for name, kind in layer_types.items()}
    prunings = pruning_cuts(magnitudes if prune_metric == "magnitude" else scores, groups, prune)
    done = {}
    for name, (by_magnitude, by_sensitivity) in protections.items():
        if prune_metric == "magnitude":
            own, energy = magnitudes[name], None
        else:
            own, energy = sensitivities.get(name, (magnitudes[name], None))
        limit = capped(prunings.get(name, -1.0), own, energy, energy_cap, (spreads or {}).get(name, math.inf))
        cut = Cut(by_magnitude, by_sensitivity, limit, prune_metric)
        if keep_zeros and limit < 0.0 and magnitudes[name].counts[0] > 0:
            cut = replace(cut, prune=float(magnitudes[name].buckets.limits[0]), prune_metric="magnitude")
        done[name] = cut
    return done


def protection_cuts(
    magnitudes: Mapping[str, Sketch],
    scores: Mapping[str, Sketch],
    layer_types: Mapping[str, str],
    share: float,
) -> dict[str, tuple[float, float]]:
    """(threshold on |w|, threshold on |g w|) of every tensor: embeddings together, all others together."""
    found: dict[str, tuple[float, float]] = {}
    for embedding in (False, True):
        names = [name for name in magnitudes if (layer_types[name] == "embedding") == embedding]
        by_magnitude = protection_threshold([magnitudes[name] for name in names], share)
        by_score = protection_threshold([scores[name] for name in names if name in scores], share)
        found |= {name: (by_magnitude, by_score if name in scores else math.inf) for name in names}
    return {name: found[name] for name in magnitudes}


def _group(name: str, kind: str, scope: PruneScope) -> str:
    """What a tensor's pruning threshold is shared within; embeddings stay apart."""
    if kind == "embedding":
        return kind
    return {"layer_type": kind, "tensor": f"tensor {name}", "global": "all"}[scope]


def pruning_cuts(scores: Mapping[str, Sketch], groups: Mapping[str, str], share: float) -> dict[str, float]:
    """Threshold on the metric of every tensor: one per group (a layer type, usually), none for embeddings."""
    found: dict[str, float] = {}
    for group in {groups[name] for name in scores} - {"embedding"}:
        names = [name for name in scores if groups[name] == group]
        threshold = pruning_threshold([scores[name] for name in names], share)
        found |= dict.fromkeys(names, threshold)
    return found


def merge(sketches: Iterable[Sketch]) -> Sketch | None:
    """All sketches together; None where there is none, or where they hold no value."""
    parts = list(sketches)
    if not parts:
        return None
    merged = sum(parts[1:], start=parts[0])
    return merged if merged.total else None


def edge_energies(sketch: Sketch) -> tuple[Energy, float]:
    """(at most the energy in each magnitude bucket, at least the energy of them all)."""
    edges, counts = sketch.buckets.edges, sketch.counts
    lost = counts * edges[1:] ** 2
    lost[0] = 0.0  # exact zeros, and what is too small to be told from them
    return lost, float((counts * edges[:-1] ** 2).sum())
