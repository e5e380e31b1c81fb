"""A tensor that is held, decoded some rows at a time: whole, it would take four bytes a weight."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

import torch
from torch import Tensor

from dynaquant_core.methods.words import Plain
from dynaquant_core.state.raw import copied
from dynaquant_core.state.spec import TensorSpec, dtype_of

__all__ = ["parts_of", "row_parts"]

#: Weights that are decoded at a time.
PART = 1 << 18


class InParts(Protocol):
    """A tensor on a lattice (`cells`)."""

    @property
    def spec(self) -> TensorSpec:
        """Its shape and dtype."""
        ...

    def parts(self, dtype: torch.dtype) -> Iterator[tuple[slice, Tensor]]:
        """See `parts_of`."""
        ...


def parts_of(held: InParts | Plain, dtype: torch.dtype | None = None) -> Iterator[tuple[slice, Tensor]]:
    """Yields the parts of `row_parts` in order: (which weights, their values [n], on the CPU).

    Args:
        held: a tensor on a lattice or in words.
        dtype: of the values; None: the tensor's own.
    """
    wanted = dtype or dtype_of(held.spec.dtype)
    if not isinstance(held, Plain):
        yield from held.parts(wanted)
        return
    stored = "bfloat16" if held.bf16 else held.spec.dtype
    for part in row_parts(held.spec):
        bits = held.bits[part]
        yield part, copied(bits, TensorSpec((bits.size,), stored)).to(wanted)


def row_parts(spec: TensorSpec) -> list[slice]:
    """Parts of a tensor's weights, of whole rows where it has some; each begins at a multiple of 8 rows.

    Example:
        >>> row_parts(TensorSpec((20, 30_000), "float32"))
        [slice(0, 240000, None), slice(240000, 480000, None), slice(480000, 600000, None)]
    """
    width = max(spec.numel // spec.shape[0], 1) if len(spec.shape) > 1 and spec.shape[0] else 1
    size = max(PART // width // 8 * 8, 8) * width
    return [slice(start, min(start + size, spec.numel)) for start in range(0, spec.numel, size)]
