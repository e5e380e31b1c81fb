"""Which tensors have a widest step: those that noise would slow for the rest of a run (ours).

A step of s spreads adds s^2 / 12 of a tensor's own energy, which a restore leaves there.  Behind a
normalisation only the direction of weights counts, so that larger ones turn less at each step of the
optimizer; convolutions mostly stand there, and so do linear layers that have a batch norm beside them.
Under Adam their noise cost a run more than without second moments, so half the step is allowed there; and
in tables of embeddings, whatever trains them: their rows see a gradient only now and then.
Without second moments (SGD) the gradient shrinks too as the weights behind a normalisation grow.  Matrices of
transformers under Adam ended no worse however large they grew (docs/restoring.md), so all others go with the
scale wherever an optimizer keeps second moments.  Not beyond: what has next to no gradient (a head that is
hardly used, an adapter that just began) would drown in its noise.

Nor may noise exceed what training takes out of each tensor by itself: a hundred times what it has moved since
the last restore, squared.  A search bounds the sum of all, and a head with a learning rate of its own moves a
hundred times as far as the body below it.  A tensor that stands still takes its noise once.  An average of
the model has no such bound: where `evaluate` asks the average, what it sees of its noise bounds the model's.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from math import inf, sqrt

from torch import Tensor

from dynaquant_core.methods.base import Hints
from dynaquant_core.quantize.layers import layer_type

__all__ = ["Bound"]

#: What a batch norm calls the buffer that tells it from other layers.
VARIANCE = ".running_var"
#: What is left of the bound in an embedding, and behind a normalisation under Adam and its kin, where noise
#: costs a run more.
SLOW = 0.5
#: Times the scale, in its own spreads, that a step may have where no bound holds.  In a GPT and a ViT, all of
#: which is trained, steps of matrices come to 0.15 to 1.8 times the scale, whenever one looks.
FREE = 2.0
#: A share of all weights that a search does not look at.
FEW = 0.05
#: Steps that are narrow enough whatever a tensor has moved, in its own spreads.
NARROWEST = 0.02


@dataclass(frozen=True, slots=True)
class Bound:
    """How wide steps may be.

    Args:
        widest: step of a bounded tensor in its own spreads.
        everywhere: no tensor is free.
        scale: of the draft, the mean step in mean spreads; infinity: of the boldest there is.
        noise: over the squared movement of each tensor, at most.

    Example:
        >>> import torch
        >>> known = Hints(fisher={"fc": 1e-6, "conv": 1e-6})
        >>> bound, matrix, kernel = Bound(1.0), torch.zeros(10, 10), torch.zeros(8, 3, 3, 3)
        >>> bound.of("fc", matrix, known), bound.of("conv", kernel, known)
        (inf, 0.5)
        >>> bound.of("conv", kernel, Hints())  # an optimizer without second moments, or none
        1.0
        >>> Bound(1.0, scale=0.8).of("fc", matrix, known)
        1.6
    """

    widest: float = inf
    everywhere: bool = False
    scale: float = inf
    noise: float = inf

    def of(self, name: str, tensor: Tensor, hints: Hints) -> float:
        """The widest step of a tensor in its own spreads; infinity: there is no bound."""
        limit, free = self._limit(name, tensor, hints)
        return min(max(limit, FREE * self.scale) if free else limit, self._healing(name, hints))

    def _healing(self, name: str, hints: Hints) -> float:
        """The step whose noise is as much as a tensor's own movement lets heal."""
        far = hints.moved.get(name, 0.0)
        return max(sqrt(12.0 * self.noise) * far, NARROWEST) if far > 0.0 else inf

    def _limit(self, name: str, tensor: Tensor, hints: Hints) -> tuple[float, bool]:
        """(the bound whatever the scale, whether steps may go with it beyond).

        They do in a matrix whose optimizer keeps second moments, with no batch norm beside its layer.  In a
        table of embeddings they do not, whatever trains it, nor where a state holds several models: evaluate
        seldom looks at all of them, and nothing else would stop the noise of one that it does not see.
        """
        kind = hints.layer_types.get(name) or layer_type(name, tuple(tensor.shape))
        if kind == "embedding":
            return self.widest * SLOW, False
        if tensor.dim() < 2 or name not in hints.fisher:
            return self.widest, False
        if kind == "convolution" or owner(owner(name)) in batch_normed(hints):
            return self.widest * SLOW, False
        return self.widest, not self.everywhere and hints.models <= 1

    def usual(self, state: Mapping[str, Tensor], hints: Hints) -> float:
        """The least bound above which there are only a few weights (`FEW`); infinity where more are free.

        Movement does not count: it is another one at each save, and a search goes on from the last.
        """
        sizes: Counter[float] = Counter()
        for name, tensor in state.items():
            limit, free = self._limit(name, tensor, hints)
            sizes[inf if free else limit] += tensor.numel()
        few = FEW * sizes.total()
        for widest in sorted(sizes, reverse=True):
            few -= sizes[widest]
            if few < 0:
                return widest
        return self.widest


def batch_normed(hints: Hints) -> frozenset[str]:
    """Modules with a batch norm right in them, by the state's names; looked for once a save."""
    key = ("lattice", "batch normed")
    if key not in hints.scratch:
        norms = (name.removesuffix(VARIANCE) for name in hints.roles if name.endswith(VARIANCE))
        hints.scratch[key] = frozenset(map(owner, norms))
    found: frozenset[str] = hints.scratch[key]
    return found


def owner(name: str) -> str:
    """The module that a tensor, or another module, stands in.

    Example:
        >>> owner("model.fc.weight"), owner("fc")
        ('model.fc', '')
    """
    return name.rpartition(".")[0]
