"""Operations whose backward sets what they saved against each other: it stays exact.

The gradient of a maximum goes where ``self == result``: packed each for itself, nothing is equal, and 0 / 0
remains.  That of a logarithm of a sum is exp(self - result), as in `attention`; that of a decomposition
divides by differences of eigenvalues.  `copysign` divides result by self, a hypotenuse self by result,
Bessel functions take the difference of what is nearly equal, and a logit's is 1 / (p (1 - p)).  A loss over
log-probabilities takes exp(value) - 1 at the labels, others take the difference from them, and where a grid
says at which pixels of a map to look, a level is many pixels wide.  And what is saved before it is known, as
slopes that are then drawn, cannot be packed yet.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor
from torch.nn import functional

__all__ = [
    "ENTANGLED",
    "GRIDS",
    "ORDERED",
    "SOFTMAX",
    "Everything",
    "GridCall",
    "Nothing",
    "is_extreme",
    "named",
]


def named(*names: str) -> frozenset[Any]:
    """All functions and methods of torch that have one of the names."""
    places = (torch, Tensor, torch.linalg, torch.special, functional)
    return frozenset(getattr(place, name) for name in names for place in places if hasattr(place, name))


#: Products of matrices and views, which are as any other operation's.
PLAIN: Final = named("cross", "diagonal", "matmul", "multi_dot", "vecdot")

#: Norms, which are extreme or not by their order.
ORDERED: Final = named("norm", "normalize", "vector_norm", "matrix_norm")
#: Of order 1 their gradient takes the signs of the map whose values it takes.
QUOTIENTS: Final = named("normalize")
MATRICES: Final = frozenset({torch.linalg.norm, torch.linalg.matrix_norm})

#: No private functions: where a compiler meets one in a set, it leaves all that asks for the set uncompiled.
DECOMPOSITIONS: Final = frozenset(
    one
    for name, one in vars(torch.linalg).items()
    if callable(one) and not isinstance(one, type) and not name.startswith("_")
) | named(
    "cholesky",
    "cholesky_inverse",
    "cholesky_solve",
    "det",
    "inverse",
    "logdet",
    "lu",
    "lu_solve",
    "matrix_exp",
    "matrix_power",
    "ormqr",
    "pca_lowrank",
    "pinverse",
    "qr",
    "slogdet",
    "svd",
    "svd_lowrank",
    "triangular_solve",
)

#: Slopes that are drawn: torch saves them before it draws them.
DRAWN: Final = named("rrelu", "rrelu_") | {
    torch._C._nn.rrelu_with_noise,  # type: ignore[attr-defined]
    torch.ops.aten.rrelu_with_noise,
    torch.ops.aten.rrelu_with_noise.default,
    torch.ops.aten.rrelu_with_noise_,
    torch.ops.aten.rrelu_with_noise_.default,
}

#: Losses set what is predicted against what is wanted.  Of rare and sure predictions, which lie far out, the
#: gradient is that of wrong ones once either is clamped.
LOSSES: Final = frozenset(
    one for name, one in vars(functional).items() if name.endswith(("_loss", "_cross_entropy"))
) | named(
    "binary_cross_entropy",
    "binary_cross_entropy_with_logits",
    "cosine_embedding_loss",
    "cosine_similarity",
    "cross_entropy",
    "ctc_loss",
    "hinge_embedding_loss",
    "kl_div",
    "log_softmax",
    "logsigmoid",
    "margin_ranking_loss",
    "nll_loss",
    "poisson_nll_loss",
    "triplet_margin_loss",
)

#: Of two maps.  A maximum of each two values asks which is the larger one, the logarithm of a sum of two
#: exponents takes exp(self - other), an angle self / (self^2 + other^2), a remainder the whole part of
#: self / other, x log y is of probabilities, and an incomplete gamma exponentiates a difference.
PAIRED: Final = named(
    "__imod__",
    "__mod__",
    "__rmod__",
    "arctan2",
    "arctan2_",
    "atan2",
    "atan2_",
    "fmax",
    "fmin",
    "fmod",
    "fmod_",
    "gammainc",
    "gammaincc",
    "igamma",
    "igamma_",
    "igammac",
    "igammac_",
    "logaddexp",
    "logaddexp2",
    "maximum",
    "minimum",
    "remainder",
    "remainder_",
    "xlog1py",
    "xlogy",
    "xlogy_",
)

#: Learned widths of quantization: their gradient sets a map against its rounded self and against the ends.
QUANTIZED: Final = named(
    "_fake_quantize_learnable_per_channel_affine", "_fake_quantize_learnable_per_tensor_affine"
)

#: Everything that they save is needed as it is.
ENTANGLED: Final = (
    named(
        "amax",
        "amin",
        "aminmax",
        "cdist",
        "copysign",
        "copysign_",
        "cumprod",
        "dist",
        "erfcx",
        "hypot",
        "hypot_",
        "i0e",
        "i1",
        "i1e",
        "index_reduce",
        "index_reduce_",
        "log_ndtr",
        "logcumsumexp",
        "logit",
        "logit_",
        "logsumexp",
        "lp_pool1d",
        "lp_pool2d",
        "lp_pool3d",
        "max",
        "median",
        "min",
        "nanmedian",
        "pairwise_distance",
        "pdist",
        "prod",
        "renorm",
        "scatter_reduce",
        "scatter_reduce_",
        "segment_reduce",
    )
    | DECOMPOSITIONS
    | DRAWN
    | LOSSES
    | PAIRED
    | QUANTIZED
) - (PLAIN | ORDERED)

#: What they save may be packed, but not in a graph: a compiler saves scores in place of probabilities.
SOFTMAX: Final = named("gumbel_softmax", "softmax", "softmin")

#: Samplers of maps.
GRIDS: Final = named("grid_sample", "grid_sampler", "grid_sampler_2d", "grid_sampler_3d")


def is_extreme(func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
    """Whether one of ``ORDERED`` is a maximum, a minimum, a decomposition, or signs beside what it divides.

    Example:
        >>> values = torch.ones(2)
        >>> is_extreme(torch.norm, (values, math.inf), {}), is_extreme(torch.norm, (values,), {})
        (True, False)
    """
    order = order_of(args, kwargs)
    if order is None or order == "fro":
        return False
    signed = func in QUOTIENTS and order == 1
    return signed or func in MATRICES or isinstance(order, str) or not math.isfinite(order)


def order_of(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """The order that a call of one of ``ORDERED`` was given; None: that of its own.

    Example:
        >>> order_of((torch.ones(2), 1), {}), order_of((torch.ones(2),), {"ord": "fro"})
        (1, 'fro')
    """
    return kwargs.get("ord", kwargs.get("p", args[1] if len(args) > 1 else None))


@dataclass(frozen=True, slots=True)
class Everything:
    """A call all of whose saved tensors must stay exact."""

    def needs(self, tensor: Tensor) -> bool:  # noqa: ARG002
        """Yes."""
        return True


@dataclass(frozen=True, slots=True)
class Nothing:
    """A call all of whose saved tensors may be packed."""

    def needs(self, tensor: Tensor) -> bool:  # noqa: ARG002
        """No."""
        return False


@dataclass(frozen=True, slots=True)
class GridCall:
    """A call that samples a map.

    Args:
        shape: of the grid.
    """

    shape: torch.Size

    @classmethod
    def of(cls, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> GridCall:
        """A call that torch has taken."""
        return cls((args[1] if len(args) > 1 else kwargs["grid"]).shape)

    def needs(self, tensor: Tensor) -> bool:
        """Whether a tensor that it saves is the grid."""
        return tensor.shape == self.shape
