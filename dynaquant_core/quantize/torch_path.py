"""The seam's torch side: the same cells, tables and rules as tensor operations on any device.

Works through a tensor in chunks, so that the 64-bit indices torch needs never take the tensor's size eight
times over.  Gives the same counts and codes as `cpu_path`, bit for bit.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dynaquant_core.quantize.cells import SIGN_MASK, Cells
from dynaquant_core.quantize.cut import PROTECTED
from dynaquant_core.quantize.flat import to_bfloat16
from dynaquant_core.quantize.importance import sensitivity
from dynaquant_core.quantize.rules import Rules

__all__ = ["assign", "count", "joint", "place", "score"]

#: Elements of one chunk (32 MiB of indices).
CHUNK = 1 << 22


def chunks(size: int) -> Iterator[slice]:
    """Cuts a flat tensor into chunks; at least one."""
    for start in range(0, max(size, 1), CHUNK):
        yield slice(start, min(start + CHUNK, size))


def cell_of(part: Tensor, cells: Cells, split: Tensor) -> Tensor:
    """int64[n]: cell of each float32 value (`Cells.of`)."""
    bits = part.view(torch.int32)
    cell = ((bits >> cells.shift) & ((1 << (32 - cells.shift)) - 1)).to(torch.int64)
    if split.numel():
        cell = 2 * cell + ((bits & SIGN_MASK) > split[cell])
    return cell


def on_device(array: NDArray[Any], device: torch.device) -> Tensor:
    """An array on the data's device, to be read; on the CPU the same memory where torch may look at it."""
    whole = np.ascontiguousarray(array)
    return torch.from_numpy(whole if whole.flags.writeable else whole.copy()).to(device)


def splits(cells: Cells, device: torch.device) -> Tensor:
    """The cells' splits as int32, which torch compares on every device (they fit, see `NO_SPLIT`)."""
    return on_device(cells.split.astype(np.int32), device)


def count(flat: Tensor, cells: Cells) -> NDArray[np.int64]:
    """See `cpu_path.count`."""
    split = splits(cells, flat.device)
    total = torch.zeros(cells.size, dtype=torch.int64, device=flat.device)
    for part in chunks(flat.numel()):
        cell = cell_of(flat[part].to(torch.float32), cells, split)
        total += torch.bincount(cell, minlength=cells.size)
    return to_host(total)


def score(flat: Tensor, gradient: Tensor, cells: Cells) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """See `cpu_path.score`; the energy is summed in another order."""
    split = splits(cells, flat.device)
    counts = torch.zeros(cells.size, dtype=torch.int64, device=flat.device)
    energy = torch.zeros(cells.size, dtype=torch.float64, device=flat.device)
    for part in chunks(flat.numel()):
        cell = cell_of(sensitivity(flat[part], gradient[part]), cells, split)
        counts += torch.bincount(cell, minlength=cells.size)
        energy.index_add_(0, cell, flat[part].to(torch.float32).to(torch.float64).square())
    return to_host(counts), to_host(energy)


def rows_of(
    flat: Tensor, gradient: Tensor | None, cells: Cells, rules: Rules
) -> Iterator[tuple[slice, Tensor]]:
    """Yields (chunk, row or level of each of its weights) under the rules."""
    split = splits(cells, flat.device)
    table = on_device(rules.table(np.int64), flat.device)
    for part in chunks(flat.numel()):
        rows = table[cell_of(flat[part].to(torch.float32), cells, split)]
        if gradient is not None:
            marks = sensitivity(flat[part], gradient[part])
            kept = rows != rules.pruned + 1
            rows = torch.where((marks <= rules.prune) & kept, rules.pruned, rows)
            rows = torch.where(marks > rules.protect, rules.pruned + 1, rows)
        yield part, rows


def joint(
    flat: Tensor, gradient: Tensor | None, cells: Cells, rules: Rules, base: NDArray[np.uint8], levels: int
) -> NDArray[np.int64]:
    """See `cpu_path.joint`."""
    total = torch.zeros(rules.rows * levels, dtype=torch.int64, device=flat.device)
    for part, rows in rows_of(flat, gradient, cells, rules):
        index = rows.to(torch.int64) * levels + on_device(base[part], flat.device)
        total += torch.bincount(index, minlength=total.numel())
    return to_host(total).reshape(rules.rows, levels)


def assign(
    flat: Tensor, gradient: Tensor | None, cells: Cells, rules: Rules, codes: NDArray[np.uint8]
) -> NDArray[np.uint16]:
    """See `cpu_path.assign`."""
    protected = []
    for part, rows in rows_of(flat, gradient, cells, rules):
        codes[part] = to_host(rows.to(torch.uint8))
        kept = flat[part][rows == PROTECTED].to(torch.float32).view(torch.int32)
        protected.append(to_bfloat16(to_host(kept).view(np.uint32)))
    return np.concatenate(protected)


def place(
    codes: NDArray[np.uint8], table: Tensor, protected: Tensor, out: Tensor, pieces: list[tuple[slice, int]]
) -> None:
    """See `cpu_path.place`; ``table`` and ``protected`` may be on the CPU."""
    table = table.to(out.device)
    for part, start in pieces:
        levels = on_device(codes[part], out.device)
        ones = levels == PROTECTED
        decoded = table[levels.to(torch.int64)]
        decoded[ones] = protected[start : start + int(ones.sum())].to(out.device)
        out[part] = decoded


def bring(tensor: Tensor, into: NDArray[Any]) -> None:
    """Writes a device's tensor [n] into an array of its size and dtype, when the device has done its work."""
    torch.from_numpy(into).copy_(tensor)


def to_host(tensor: Tensor) -> NDArray[Any]:
    """A tensor as a NumPy array in host memory."""
    array: NDArray[Any] = tensor.cpu().numpy()
    return array
