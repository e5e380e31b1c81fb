"""Frozen settings: one point of DynaQuant's search cube, and the options a store is made with.

A *config* is one searched point (bins, pruning, protection); it may differ at every checkpoint.
*Options* (coder, K-means, sigma, codebook scope, sketch) are fixed for a store and recorded in it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, Any, Literal, get_args

from dynaquant_core.errors import ConfigError

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = [
    "MAX_BINS",
    "Bins",
    "Config",
    "DynaQuantOptions",
    "LatticeConfig",
    "LatticeOptions",
    "Metric",
    "PruneScope",
    "Scale",
]

MAX_BINS = 64

Metric = Literal["magnitude", "sensitivity"]
PruneScope = Literal["layer_type", "tensor", "global"]
Bins = int | Literal["bf16", "exact"]
Scale = float | Literal["bf16", "exact"]

#: Scales of a lattice: below, steps are finer than bfloat16; above, nothing of a network is left.
FINEST, COARSEST = 2.0**-12, 2.0**6

#: Widest step in spreads of its tensor: its noise is a twelfth of the weights' energy.
MAX_STEP = 1.0


def require(condition: bool, message: str) -> None:
    """Raises ConfigError with ``message`` unless ``condition`` holds."""
    if not condition:
        raise ConfigError(message)


def require_choice(owner: str, name: str, value: object, choices: tuple[object, ...]) -> None:
    """Raises ConfigError unless ``value`` is one of ``choices``."""
    known = ", ".join(map(repr, choices))
    require(value in choices, f"{owner}: {name} must be one of {known}, got {value!r}.")


def require_number(
    owner: str,
    name: str,
    value: object,
    low: float,
    high: float,
    *,
    open_high: bool = False,
    words: tuple[str | None, ...] = (),
) -> None:
    """Raises ConfigError unless ``value`` is in [low, high], or [low, high) when open, or of ``words``."""
    if isinstance(value, str | None) and value in words:
        return
    good = isinstance(value, (int, float)) and not isinstance(value, bool)
    good = good and low <= value and (value < high if open_high else value <= high)  # type: ignore[operator]
    bracket = ")" if open_high else "]"
    listed = "".join(f" or {word!r}" for word in words)
    require(good, f"{owner}: {name} must be a number in [{low}, {high}{bracket}{listed}, got {value!r}.")


def require_threshold(owner: str, value: object) -> None:
    """Raises ConfigError unless ``value`` is a share in [0, 1): who writes 5 means 0.05."""
    good = isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value < 1
    require(
        good, f"{owner}: threshold must be a share of at least 0 and below 1, as 0.05 for 5%, got {value!r}."
    )


def require_bins(owner: str, name: str, value: object, words: tuple[str, ...]) -> None:
    """Raises ConfigError unless ``value`` is a whole number from 2 to 64 or one of ``words``."""
    if isinstance(value, int) and not isinstance(value, bool):
        good = 2 <= value <= MAX_BINS
    else:
        good = isinstance(value, str) and value in words
    listed = "".join(f" or {word!r}" for word in words)
    require(good, f"{owner}: {name} must be a whole number from 2 to {MAX_BINS}{listed}, got {value!r}.")


class FrozenSettings:
    """What is a frozen dataclass of plain values, as JSON-ready data and back."""

    __slots__ = ()

    def as_dict(self) -> dict[str, Any]:
        """The values by name; `from_dict` takes them back."""
        return asdict(self)  # type: ignore[call-overload, no-any-return]  # what derives from it is a dataclass

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """Takes `as_dict` back; raises ConfigError on unknown keys or bad values."""
        return cls(**known_keys(cls, data))


@dataclass(frozen=True, slots=True, kw_only=True)
class Config(FrozenSettings):
    """One point of DynaQuant's search cube (paper sec. 4.2, 5.1).

    Args:
        bins: centres of each tensor's codebook, 2 to 64; ``"bf16"`` or ``"exact"`` go beyond the cube.
        prune: share of weights set to zero, in [0, 1), by ``prune_metric`` within a layer type.
        protect: share of weights kept in bfloat16 by magnitude and again by sensitivity, in [0, 1).
        prune_metric: ``"magnitude"`` |w| or ``"sensitivity"`` |g w| (needs gradients).
        embedding_bins: centres for embeddings, which are never pruned (ignored beyond the cube).

    Raises:
        ConfigError: a value is of the wrong type or out of range.

    Example:
        >>> Config(bins=8, prune=0.2).protect
        0.0005
    """

    bins: Bins = 16
    prune: float = 0.0
    protect: float = 0.0005
    prune_metric: Metric = "magnitude"
    embedding_bins: int = 32

    def __post_init__(self) -> None:
        require_bins("Config", "bins", self.bins, ("bf16", "exact"))
        require_bins("Config", "embedding_bins", self.embedding_bins, ())
        require_number("Config", "prune", self.prune, 0.0, 1.0, open_high=True)
        require_number("Config", "protect", self.protect, 0.0, 1.0, open_high=True)
        require_choice("Config", "prune_metric", self.prune_metric, get_args(Metric))


@dataclass(frozen=True, slots=True, kw_only=True)
class LatticeConfig(FrozenSettings):
    """One point of the method ``lattice``.

    Args:
        scale: mean step of the lattice in mean standard deviations of the weights, 2**-12 to 64; ``"bf16"``
            or ``"exact"`` go beyond it.  Far above the method's ``max_step`` it moves only tensors which that
            leaves free.

    Raises:
        ConfigError: the value is of the wrong type or out of range.

    Example:
        >>> LatticeConfig(scale=2).scale
        2.0
    """

    scale: Scale = 0.5

    def __post_init__(self) -> None:
        if self.scale not in ("bf16", "exact"):
            require_number("LatticeConfig", "scale", self.scale, FINEST, COARSEST)
            object.__setattr__(self, "scale", float(self.scale))


@dataclass(frozen=True, slots=True, kw_only=True)
class DynaQuantOptions(FrozenSettings):
    """Options of the method ``dynaquant``, fixed for a store and recorded in it.

    Args:
        coder: ``"auto"`` chooses the smallest codec per stream; ``"paper"`` forces paper sec. 6.
        kmeans: ``"exact"`` solves by dynamic programming; ``"lloyd"`` is the paper's (A.2.2).
        sigma: weight of the count against the magnitude in K-means, in [0, 1] (paper A.2: 0.2).
        codebook_scope: ``"tensor"``, ``"global"``, or ``"auto"``: chosen at each key checkpoint.
        sketch: ``"bits"`` buckets float bit patterns; ``"log"`` is the published key.
        mantissa_bits: resolution of the bit-pattern sketch, 4 to 10 (6: 0.775% relative error).
        energy_cap: share of a tensor's own energy that shared pruning may remove, in (0, 1] (ours).
        frozen_slack: a base's codebook is kept while its loss is within this share of a fresh one's
            (0 refits at every checkpoint, as the paper does).
        after_restore: codes of a run that began from a checkpoint: ``"dither"`` draws one of the two nearest
            centres, so that the next restore loses no movement (ours); ``"nearest"`` goes on as before.
        prune_scope: which weights share a pruning threshold: those of a ``"layer_type"`` (published), of a
            ``"tensor"``, or ``"global"``: all.  Embeddings are pruned in none.
        profile: ``None``, or ``"paper"``: every choice above as published.

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

    def as_dict(self) -> dict[str, Any]:
        """The options as JSON-ready data; ``DynaQuantOptions.from_dict`` takes it back.

        ``after_restore`` and ``prune_scope`` say nothing to a reader and are younger than many files; so they
        are left out where they are what the profile has anyway, and chains written before them go on.
        """
        data = asdict(self)
        younger = {"after_restore": "dither", "prune_scope": "layer_type"}
        usual = {**younger, **(PAPER_PROFILE if self.profile == "paper" else {})}
        return {key: value for key, value in data.items() if key not in younger or value != usual[key]}


@dataclass(frozen=True, slots=True, kw_only=True)
class LatticeOptions(FrozenSettings):
    """Options of the method ``lattice``, fixed for a store (ours).

    Args:
        max_noise: noise that a search lets a checkpoint add, over the squared movement since the run began or
            was last restored: ``"auto"``, 0.5 over what the checkpoint itself costs (its standard error
            added), from 5 to 100 (50 where it is 1% worse, 10 where 5%), and the threshold is a share of what
            the model has learnt, where that is less than its metric; a number above 0; None: the threshold
            alone decides.  That is of all tensors together; of each that is trained it is 100, or the number.
            It acts where that movement is known (a Checkpointer, a plugin).
            Training heals noise by moving the weights, so noise far above the movement stays, and its cost
            with it (docs/healing.md).
        max_step: widest step of a tensor in standard deviations of its weights, 0.05 to 100, half of it for
            embeddings and, under Adam and its kin, convolutions and linear layers beside a batch norm; None:
            no bound.
            A step of s adds s^2 / 12 of the weights' own energy, which stays after a restore; behind a
            normalisation larger weights learn more slowly (docs/restoring.md).
        max_step_of: ``"slowed"``: the bound holds for convolutions, embeddings, linear layers with a batch
            norm beside them and tensors whose optimizer keeps no second moments, and for every tensor of
            several models in one state, while the steps of all other matrices under Adam and its kin go with
            the scale, up to twice as wide in spreads; ``"all"``: for every tensor.
        keep_norm: convolutions with a batch norm beside them, which count by their direction alone, are
            decoded as long as they are; False: noise adds to their length, at every restore
            (docs/restoring.md).

    Raises:
        ConfigError: a value is of the wrong type or out of range.

    Example:
        >>> LatticeOptions().as_dict(), LatticeOptions(max_noise=5).as_dict()
        ({}, {'max_noise': 5.0})
    """

    max_noise: float | Literal["auto"] | None = "auto"
    max_step: float | None = MAX_STEP
    max_step_of: Literal["slowed", "all"] = "slowed"
    keep_norm: bool = True

    def __post_init__(self) -> None:
        require_number("method lattice", "max_noise", self.max_noise, 1e-3, 1e9, words=("auto", None))
        require_number("method lattice", "max_step", self.max_step, 0.05, 100.0, words=(None,))
        for name in ("max_noise", "max_step"):
            value = getattr(self, name)
            if isinstance(value, int):
                object.__setattr__(self, name, float(value))
        require_choice("method lattice", "max_step_of", self.max_step_of, ("slowed", "all"))
        flag = type(self.keep_norm) is bool
        require(flag, f"method lattice: keep_norm must be true or false, got {self.keep_norm!r}.")

    def as_dict(self) -> dict[str, Any]:
        """What differs from the default: it says nothing to a reader and is younger than many files."""
        usual = {field.name: field.default for field in fields(self)}
        return {name: value for name, value in asdict(self).items() if value != usual[name]}


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


def nearest(word: object, known: Iterable[str]) -> str:
    """A hint for a word that is not ``known``: the nearest one, or all of them.

    Example:
        >>> nearest("treshold", ["steps", "threshold"])
        "did you mean 'threshold'?"
        >>> nearest("zzz", ["steps", "threshold"])
        'known: steps, threshold.'
    """
    from difflib import get_close_matches

    names = list(known)
    near = get_close_matches(str(word), names, n=1)
    return f"did you mean {near[0]!r}?" if near else f"known: {', '.join(names)}."


def known_keys(cls: type, data: Mapping[str, Any]) -> dict[str, Any]:
    """Returns ``data`` as a dict; raises ConfigError naming the nearest field for an unknown key."""
    names = [field.name for field in fields(cls)]
    for key in data:
        if key not in names:
            raise ConfigError(f"{cls.__name__} has no setting {key!r}; {nearest(key, names)}")
    return dict(data)
