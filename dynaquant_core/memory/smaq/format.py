"""What a number format for training is: it packs a tensor into real bytes, and gives it back."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any, Protocol

import torch
from torch import Tensor

from dynaquant_core.errors import ConfigError, UnsupportedStateError
from dynaquant_core.memory.smaq.statistics import Statistics
from dynaquant_core.quantize.flat import FLOATS

__all__ = ["Format", "Packed", "described", "require_floating", "require_generator"]


class Packed(Protocol):
    """A tensor in few bytes, on the device that it was on."""

    @property
    def nbytes(self) -> int:
        """Bytes of all that is stored for it: codes, masks, counts and statistics."""
        ...

    @property
    def statistics(self) -> Statistics | None:
        """What its codes are relative to; None where they are not."""
        ...

    def decode(self) -> Tensor:
        """The tensor: contiguous, of the shape, dtype and device that it had."""
        ...


class Format(Protocol):
    """A number format; a frozen dataclass, whose fields are its settings."""

    @property
    def name(self) -> str:
        """What `formats.make_format` calls it."""
        ...

    def encode(
        self, tensor: Tensor, generator: torch.Generator, statistics: Statistics | None = None
    ) -> Packed:
        """Packs a tensor.

        Args:
            tensor: float32, float16, bfloat16 or float64, of any shape and device; is not changed.
            generator: on the CPU; stochastic rounding and samples are drawn from it.
            statistics: of an earlier tensor, to be used instead of this one's own.

        Raises:
            UnsupportedStateError: not floating, or not finite where that cannot be stored.
            ConfigError: the generator is none, or not on the CPU.
        """
        ...

    def settle(
        self, tensor: Tensor, generator: torch.Generator, statistics: Statistics | None = None
    ) -> tuple[Tensor, int, Statistics | None]:
        """(what `encode` and `decode` give, bytes that it would take, statistics) in one pass."""
        ...

    def second_moments(self) -> Format:
        """The format for an optimizer's averages of squares, which must stay positive."""
        ...

    def ruins(self, gradient: Tensor, settled: Tensor) -> bool:
        """Whether too little is left of the gradient of a map in what `settle` makes of it."""
        ...


def described(form: Format) -> dict[str, Any]:
    """A format's name and settings, as plain data."""
    return {"name": form.name, **asdict(form)}  # type: ignore[call-overload]  # formats are dataclasses


def require_floating(tensor: Tensor) -> None:
    """Raises UnsupportedStateError unless the dtype is one of four."""
    if tensor.dtype not in FLOATS or tensor.layout != torch.strided:
        known = ", ".join(str(dtype).removeprefix("torch.") for dtype in FLOATS)
        raise UnsupportedStateError(
            f"SmaQ: a {tensor.layout} {tensor.dtype} tensor of shape {tuple(tensor.shape)} cannot be coded; "
            f"expected a dense one of {known}; leave it as it is."
        )


def require_generator(generator: torch.Generator) -> None:
    """Raises ConfigError unless it is a generator on the CPU."""
    if not isinstance(generator, torch.Generator) or generator.device.type != "cpu":
        found = generator.device if isinstance(generator, torch.Generator) else type(generator).__name__
        raise ConfigError(
            f"SmaQ: expected a torch.Generator on the CPU, which serves tensors of any device, found {found}."
        )
