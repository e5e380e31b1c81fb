"""The method ``lattice`` (ours): a point of its search, and the options of a store."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from typing import Any, Literal

from dynaquant_core.config.checks import require, require_choice, require_number
from dynaquant_core.config.settings import FrozenSettings

__all__ = ["LatticeConfig", "LatticeOptions", "Scale"]

Scale = float | Literal["bf16", "exact"]

#: Scales of a lattice: below, steps are finer than bfloat16; above, nothing of a network is left.
FINEST, COARSEST = 2.0**-12, 2.0**6

#: Widest step in spreads of its tensor: its noise is a twelfth of the weights' energy.
MAX_STEP = 1.0


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
