"""The method ``dynaquant``: a point of its search cube (paper sec. 4.2, 5.1), and the options of a store."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal, get_args

from dynaquant_core.config.checks import require, require_choice, require_number
from dynaquant_core.config.settings import FrozenSettings, known_keys

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["MAX_BINS", "Bins", "Config", "DynaQuantOptions", "Metric", "PruneScope"]

MAX_BINS = 64

#: Centres of embeddings where a point does not say: as of other tensors, and not fewer; beyond codebooks, the
#: first of their axis.
LEAST_OF_EMBEDDINGS, FIRST_OF_EMBEDDINGS = 16, 32

Metric = Literal["magnitude", "sensitivity"]
PruneScope = Literal["layer_type", "tensor", "global"]
Bins = int | Literal["bf16", "exact"]


def require_bins(owner: str, name: str, value: object, words: tuple[str, ...]) -> None:
    """Raises ConfigError unless ``value`` is a whole number from 2 to 64 or one of ``words``."""
    if isinstance(value, int) and not isinstance(value, bool):
        good = 2 <= value <= MAX_BINS
    else:
        good = isinstance(value, str) and value in words
    listed = "".join(f" or {word!r}" for word in words)
    require(good, f"{owner}: {name} must be a whole number from 2 to {MAX_BINS}{listed}, got {value!r}.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Config(FrozenSettings):
    """One point of DynaQuant's search cube (paper sec. 4.2, 5.1).

    Args:
        bins: centres of each tensor's codebook, 2 to 64; ``"bf16"`` or ``"exact"`` go beyond the cube.
        prune: share of weights set to zero, in [0, 1), by ``prune_metric`` within a layer type.
        protect: share of weights kept in bfloat16 by magnitude and again by sensitivity, in [0, 1).
        prune_metric: ``"magnitude"`` |w| or ``"sensitivity"`` |g w| (needs gradients).
        embedding_bins: centres for embeddings, which are never pruned (ignored beyond the cube); None: as
            many as ``bins``, 16 at least.  A point that was made holds the number.

    Raises:
        ConfigError: a value is of the wrong type or out of range.

    Example:
        >>> Config(bins=8, prune=0.2).protect, Config(bins=24).embedding_bins, Config(bins=8).embedding_bins
        (0.0005, 24, 16)
    """

    bins: Bins = 16
    prune: float = 0.0
    protect: float = 0.0005
    prune_metric: Metric = "magnitude"
    embedding_bins: int | None = None

    def __post_init__(self) -> None:
        require_bins("Config", "bins", self.bins, ("bf16", "exact"))
        if self.embedding_bins is None:
            same = max(self.bins, LEAST_OF_EMBEDDINGS) if isinstance(self.bins, int) else FIRST_OF_EMBEDDINGS
            object.__setattr__(self, "embedding_bins", same)
        require_bins("Config", "embedding_bins", self.embedding_bins, ())
        require_number("Config", "prune", self.prune, 0.0, 1.0, open_high=True)
        require_number("Config", "protect", self.protect, 0.0, 1.0, open_high=True)
        require_choice("Config", "prune_metric", self.prune_metric, get_args(Metric))


@dataclass(frozen=True, slots=True, kw_only=True)
class DynaQuantOptions(FrozenSettings):
    """Options of the method ``dynaquant``, fixed for a store and recorded in it.

    Args:
        coder: ``"auto"`` chooses the smallest codec per stream; ``"paper"`` forces paper sec. 6.
        kmeans: ``"exact"`` solves by dynamic programming; ``"lloyd"`` is the paper's (A.2.2).
        sigma: weight of the count against the magnitude in K-means, in [0, 1] (paper A.2: 0.2).
        codebook_scope: ``"tensor"``, ``"global"``, or ``"auto"``: chosen at each key checkpoint.
        sketch: ``"bits"`` buckets float bit patterns; ``"log"`` is the published key.
        mantissa_bits: resolution of the bit-pattern sketch, 4 to 10 (6: 0.775% relative error), and by either
            sketch of what is too narrow to be coded; without effect beside ``profile="paper"``.
        energy_cap: share of a tensor's own energy that shared pruning may remove, in (0, 1] (ours).
        frozen_slack: a base's codebook is kept while its loss is within this share of a fresh one's
            (0 refits at every checkpoint, as the paper does).
        after_restore: codes of a run that began from a checkpoint: ``"dither"`` draws one of the two nearest
            centres, so that the next restore loses no movement (ours); ``"nearest"`` goes on as before.
        prune_scope: which weights share a pruning threshold: those of a ``"layer_type"`` (published), of a
            ``"tensor"``, or ``"global"``: all.  Embeddings are pruned in none.
        profile: ``None``, or ``"paper"``: every other choice above as published.

    Raises:
        ConfigError: a value is of the wrong type or out of range.

    Example:
        >>> DynaQuantOptions(profile="paper").sigma
        0.2
    """

    coder: Literal["auto", "paper"] = "auto"
    kmeans: Literal["exact", "lloyd"] = "exact"
    sigma: float = 0.3
    codebook_scope: Literal["auto", "tensor", "global"] = "auto"
    sketch: Literal["bits", "log"] = "bits"
    mantissa_bits: int = 6
    energy_cap: float = 0.02
    frozen_slack: float = 0.05
    after_restore: Literal["dither", "nearest"] = "dither"
    prune_scope: PruneScope = "layer_type"
    profile: Literal["paper"] | None = None

    def __post_init__(self) -> None:
        owner = "method dynaquant"
        require_choice(owner, "profile", self.profile, (None, "paper"))
        if self.profile == "paper":
            for name, value in PAPER_PROFILE.items():
                object.__setattr__(self, name, value)
        require_choice(owner, "coder", self.coder, ("auto", "paper"))
        require_choice(owner, "kmeans", self.kmeans, ("exact", "lloyd"))
        require_choice(owner, "codebook_scope", self.codebook_scope, ("auto", "tensor", "global"))
        require_choice(owner, "sketch", self.sketch, ("bits", "log"))
        require_choice(owner, "after_restore", self.after_restore, ("dither", "nearest"))
        require_choice(owner, "prune_scope", self.prune_scope, get_args(PruneScope))
        require_number(owner, "sigma", self.sigma, 0.0, 1.0)
        require_number(owner, "energy_cap", self.energy_cap, 0.0, 1.0)
        require_number(owner, "frozen_slack", self.frozen_slack, 0.0, 1.0)
        require_number(owner, "mantissa_bits", self.mantissa_bits, 4, 10)
        require(isinstance(self.mantissa_bits, int), f"{owner}: mantissa_bits must be a whole number.")

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """Takes `as_dict` back.

        Raises:
            ConfigError: a key is unknown, a value is bad, or not the one that a profile beside it fixes.
        """
        for name, value in PAPER_PROFILE.items() if data.get("profile") == "paper" else ():
            given = data.get(name, value)
            require(
                given == value,
                f"method dynaquant: profile='paper' sets {name} to {value!r}, got {given!r}; leave one of "
                "the two out.",
            )
        return cls(**known_keys(cls, data))

    def as_dict(self) -> dict[str, Any]:
        """The options as JSON-ready data; ``DynaQuantOptions.from_dict`` takes it back.

        ``after_restore`` and ``prune_scope`` say nothing to a reader and are younger than many files; so they
        are left out where they are what the profile has anyway, and chains written before them go on.
        """
        data = asdict(self)
        younger = {"after_restore": "dither", "prune_scope": "layer_type"}
        usual = {**younger, **(PAPER_PROFILE if self.profile == "paper" else {})}
        return {key: value for key, value in data.items() if key not in younger or value != usual[key]}


#: What ``profile="paper"`` fixes (paper sec. 4, 6, A.1, A.2).
PAPER_PROFILE: Mapping[str, Any] = {
    "coder": "paper",
    "kmeans": "lloyd",
    "sigma": 0.2,
    "codebook_scope": "tensor",
    "sketch": "log",
    "energy_cap": 1.0,
    "frozen_slack": 0.0,
    "after_restore": "nearest",
    "prune_scope": "layer_type",
}
