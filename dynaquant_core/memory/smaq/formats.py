"""The formats SmaQ is compared with, behind the same interface, and the table of all by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, final

import torch
from torch import Tensor

from dynaquant_core.config import known_keys, nearest, require
from dynaquant_core.errors import ConfigError
from dynaquant_core.memory.smaq.codec import SmaQ
from dynaquant_core.memory.smaq.format import Format, require_floating, require_generator
from dynaquant_core.memory.smaq.s2fp8 import S2FP8
from dynaquant_core.memory.smaq.statistics import Statistics

__all__ = ["FORMATS", "Cast", "PackedCast", "make_format"]


@dataclass(frozen=True, eq=False, slots=True)
class PackedCast:
    """A tensor in a narrower dtype of torch's own."""

    values: Tensor
    dtype: torch.dtype
    statistics: Statistics | None = None

    @property
    def nbytes(self) -> int:
        """Bytes of the values."""
        return self.values.nbytes

    def decode(self) -> Tensor:
        """See `format.Packed`."""
        return saturated(self.values, self.dtype)


@final
@dataclass(frozen=True, slots=True)
class Cast:
    """A dtype of torch's own, rounded to the nearest.

    What lies beyond its largest finite value becomes that, so that a comparison is not decided by what a cast
    makes of an overflow; NaN and infinity stay what they are where the dtype has them (e4m3 has no infinity).

    Args:
        name: ``"fp32"``, ``"fp16"``, ``"bf16"``, ``"fp8_e5m2"`` or ``"fp8_e4m3"``.

    Raises:
        ConfigError: another name.

    Example:
        >>> Cast("fp8_e4m3").encode(torch.tensor([1.06, 1e6]), torch.Generator()).decode().tolist()
        [1.0, 448.0]
    """

    name: str

    def __post_init__(self) -> None:
        known = ", ".join(DTYPES)
        require(self.name in DTYPES, f"SmaQ: no dtype is called {self.name!r}; known: {known}.")

    def encode(
        self,
        tensor: Tensor,
        generator: torch.Generator,
        statistics: Statistics | None = None,  # noqa: ARG002 - the protocol's
    ) -> PackedCast:
        """Packs a tensor; see `format.Format.encode`.  Nothing is drawn."""
        require_floating(tensor)
        require_generator(generator)
        return PackedCast(saturated(tensor.detach().contiguous(), DTYPES[self.name]), tensor.dtype)

    def settle(
        self, tensor: Tensor, generator: torch.Generator, statistics: Statistics | None = None
    ) -> tuple[Tensor, int, Statistics | None]:
        """What `encode` and `decode` give, and the bytes between them."""
        packed = self.encode(tensor, generator, statistics)
        return packed.decode(), packed.nbytes, None

    def second_moments(self) -> Cast:
        """The same: a cast never changes a sign."""
        return self

    def ruins(self, gradient: Tensor, settled: Tensor) -> bool:  # noqa: ARG002 - the protocol's
        """No: what a cast does to small gradients is what it is compared for."""
        return False


def saturated(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    """A copy in another dtype; what lies beyond its largest value becomes that, infinity stays.

    Clamped in no less than float32: half precision would round the largest value of another one up, and the
    cast would make infinity of it.

    Example:
        >>> saturated(torch.tensor([7e4, torch.inf], dtype=torch.bfloat16), torch.float16).tolist()
        [65504.0, inf]
    """
    largest = torch.finfo(dtype).max
    if largest < torch.finfo(tensor.dtype).max:
        wide = tensor if tensor.dtype == torch.float64 else tensor.float()
        tensor = torch.where(wide.isinf(), wide, wide.clamp(-largest, largest))
    return tensor.to(dtype, copy=True)


DTYPES: Final[Mapping[str, torch.dtype]] = {
    "fp32": torch.float32,
    "fp16": torch.float16,
    "bf16": torch.bfloat16,
    "fp8_e5m2": torch.float8_e5m2,
    "fp8_e4m3": torch.float8_e4m3fn,
}

#: Name -> what makes the format from its settings.
FORMATS: Final[Mapping[str, Callable[..., Format]]] = {
    "smaq": SmaQ,
    "s2fp8": S2FP8,
    **{name: (lambda name=name: Cast(name)) for name in DTYPES},
}


def make_format(given: str | Mapping[str, Any] | Format) -> Format:
    """A format by name, by name and settings, or as it is.

    Args:
        given: such as ``"fp16"``, ``{"name": "smaq", "inlier_bits": 5}`` or ``SmaQ(box=1.5)``.

    Raises:
        ConfigError: the name or a setting is unknown (the message has the nearest one) or out of range.

    Example:
        >>> make_format({"name": "smaq", "inlier_bits": 5}).inlier_bits
        5
        >>> make_format("smak")
        Traceback (most recent call last):
        ...
        dynaquant_core.errors.ConfigError: SmaQ: there is no format 'smak'; did you mean 'smaq'?
    """
    if not isinstance(given, (str, Mapping)):
        good = hasattr(given, "settle") and not isinstance(given, type)
        require(good, f"SmaQ: {given!r:.80} is no format; give one by name, or an object of its class.")
        return given
    settings = {"name": given} if isinstance(given, str) else dict(given)
    name = settings.pop("name", None)
    if not isinstance(name, str) or name not in FORMATS:
        raise ConfigError(f"SmaQ: there is no format {name!r}; {nearest(name, FORMATS)}")
    made = FORMATS[name]
    if name == "smaq":
        return made(**known_keys(SmaQ, settings))
    require(not settings, f"SmaQ: format {name!r} has no settings, got {', '.join(settings)}.")
    return made()
