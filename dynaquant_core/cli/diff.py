"""``dynaquant diff``: how far each tensor moved between two checkpoints."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated

import torch
import typer
from torch import Tensor

from dynaquant_core.cli.output import Json, emit, print_table, share
from dynaquant_core.cli.progress import working
from dynaquant_core.cli.source import PathArgument, open_source
from dynaquant_core.state.tree import flatten

__all__ = ["Movement", "diff", "movement"]

#: Bytes of integers that float64 cannot always tell apart.
WIDE = 8


@dataclass(frozen=True, slots=True)
class Movement:
    """What became of one tensor from A to B.

    Args:
        name: dotted name.
        change: "moved", "same", "added", "removed" or "reshaped" (shape or dtype differ).
        relative: L2 norm of B - A over that of A; None where that has no meaning: A is zeros, or not finite.
        largest: largest absolute difference of one element, 0 between equal ones; None as above.
        unchanged: share of elements that are equal, NaN to NaN too; None as above.
    """

    name: str
    change: str
    relative: float | None = None
    largest: float | None = None
    unchanged: float | None = None


def diff(
    path: PathArgument,
    a: Annotated[int, typer.Argument(metavar="A", help="Step to start from.")],
    b: Annotated[int, typer.Argument(metavar="B", help="Step to compare with it.")],
    top: Annotated[int, typer.Option(help="Print the N that moved most; 0: all.", min=0)] = 0,
    as_json: Json = False,
) -> None:
    """Show per tensor how much moved between two steps."""
    source = open_source(path)
    with working(f"reading steps {a} and {b}"):
        before, after = (tensors(source.load(step)) for step in (a, b))
        moved = [movement(name, before.get(name), after.get(name)) for name in {**before, **after}]
    if top:
        moved = sorted(moved, key=extent, reverse=True)[:top]
    if as_json:
        emit({"from": a, "to": b, "tensors": moved})
        return
    rows = [
        (one.name, one.change, share(one.relative), number(one.largest), share(one.unchanged))
        for one in moved
    ]
    columns = ("<tensor", "<change", "moved (relative L2)", "largest difference", "elements unchanged")
    print_table(f"{path}: from step {a} to step {b}", columns, rows)


def extent(one: Movement) -> float:
    """How far a tensor moved, to sort by: infinitely where it did and there is no finite ratio.

    That is what began at zero, holds NaN or infinities, or came, went or changed its shape.

    Example:
        >>> extent(Movement("w", "moved", 0.25)), extent(Movement("b", "added"))
        (0.25, inf)
    """
    if one.relative is not None and math.isfinite(one.relative):
        return one.relative
    return 0.0 if one.change == "same" else math.inf


def tensors(state: object) -> dict[str, Tensor]:
    """The tensors of a state by dotted name."""
    return {leaf.name: leaf.tensor for leaf in flatten(state).leaves}


def movement(name: str, before: Tensor | None, after: Tensor | None) -> Movement:
    """Compares two versions of one tensor (None: it is not there).

    Example:
        >>> movement("w", torch.tensor([3.0, 4.0]), torch.tensor([3.0, 4.5])).relative
        0.1
    """
    if before is None or after is None:
        return Movement(name, "added" if before is None else "removed")
    if before.shape != after.shape or before.dtype != after.dtype:
        return Movement(name, "reshaped")
    count = before.numel()
    equal = (before == after) | (before.isnan() & after.isnan())  # a NaN that stays has not moved
    unchanged = equal.sum().item() / count if count else 1.0
    if equal.all():
        return Movement(name, "same", 0.0, 0.0, unchanged)
    if before.is_complex() or before.dtype == torch.bool:
        return Movement(name, "moved", unchanged=unchanged)
    moved = _difference(before, after, ~equal)
    norm, step = before.double().norm().item(), moved.norm().item()
    relative = step / norm if norm and math.isfinite(norm) else None
    return Movement(name, "moved", relative, moved.abs().max().item(), unchanged)


def _difference(before: Tensor, after: Tensor, differing: Tensor) -> Tensor:
    """``after - before`` of the elements that differ, in float64; of wide integers exact and rounded once.

    Only of those: of an infinity that stays it would be NaN.

    Example:
        >>> _difference(torch.tensor([2**60, 7]), torch.tensor([2**60 + 1, 7]), torch.tensor([True, False]))
        tensor([1.], dtype=torch.float64)
    """
    if before.is_floating_point() or before.element_size() < WIDE:
        return (after.double() - before.double())[differing]
    pairs = zip(before[differing].tolist(), after[differing].tolist(), strict=True)
    return torch.tensor([float(new - old) for old, new in pairs], dtype=torch.float64)


def number(value: float | None) -> str:
    """Three significant digits; a dash where there is nothing to say."""
    return "-" if value is None else f"{value:.3g}"
