"""A reader of the method `lattice`, made from docs/FORMAT-lattice.md alone: slow, and with none of its code.

Only codecs are the project's.  A checkpoint is held as name -> `Tensor`, with k, history and values.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

import numpy as np
import torch
import xxhash

from dynaquant_core.coding import codec_by_id
from dynaquant_core.state import dtype_of
from tests.reference.lattice_twins import offsets

ZERO = {"narrow": 16, "wide": 128}


@dataclass
class Tensor:
    """A tensor after a checkpoint; ``k`` is None where it is on no lattice, ``exact`` is in float32."""

    values: torch.Tensor
    words: np.ndarray | None = None
    kind: int = 0
    k: np.ndarray | None = None
    history: np.ndarray | None = None
    step: float = 0.0
    epoch: int = 0
    width: str = ""
    exact: torch.Tensor | None = None
    factor: float = 1.0
    edge: float | None = None
    still: np.ndarray | None = None
    zeros: np.ndarray | None = None

    @property
    def lattice(self):
        return self.step, self.epoch, self.width


def fetch(source, name, kind, dtype, count, context=None):
    out = np.empty(count, dtype)
    codec, payload = source.get(name, kind)
    codec_by_id(codec).decode(payload, out, context)
    return out


def runs_of(sizes):
    large, small, members = [[name] for name, size in sizes.items() if size >= 65536], [], []
    for name, size in sizes.items():
        if size < 65536:
            members.append(name)
            if sum(sizes[member] for member in members) >= 65536:
                small.append(members)
                members = []
    return large + small + [members] * bool(members)


def decoded(k, step, key, edge, largest):
    """float32 values that do not pass an edge, within the largest of a dtype."""
    with np.errstate(all="ignore"):
        found = (k.astype(np.float32) + offsets(key, 0, k.size)) * np.float32(step)
    limit = np.float32(min(largest, torch.finfo(torch.float32).max))
    low, high = -limit, limit
    if edge is not None:
        low, high = (np.float32(edge), limit) if np.copysign(1, edge) > 0 else (-limit, np.float32(edge))
    return torch.from_numpy(np.minimum(np.maximum(found, low), high))


def key_of(epoch, name):
    return xxhash.xxh3_64_intdigest(name.encode(), seed=epoch)


def aims(name, own, base, count):
    """(e, whether up is likelier, context, history of the base) of each weight."""
    if base is None:
        return np.zeros(count, int), np.ones(count, bool), np.zeros(count, int), np.zeros(count, int)
    history = np.zeros(count, int) if base.history is None else base.history
    age = history & 3
    if base.k is not None and base.lattice == own.lattice:
        zero = ZERO[own.width]
        e = np.where(np.abs(base.k) < zero, base.k, -zero)
        up = np.where(age > 0, history < 4, e >= 0)
        level = np.where(e == 0, 0, 2 * np.minimum(np.abs(e), 3) - 1 + ((e > 0) != up))
        return e, up, 1 + 4 * level + age, history
    with np.errstate(all="ignore"):
        x = base.exact.numpy() / np.float32(own.step)
        x = x - offsets(key_of(own.epoch, name), 0, count)
    x = np.where(np.abs(x) < np.float32(2**30), x, np.float32(0))
    r = np.rint(x)
    f = x - r
    up = f >= 0
    border = np.maximum(np.float32(0.5) - np.abs(f), np.float32(0))
    b = np.minimum((np.float32(20) * np.sqrt(np.float32(2) * border)).astype(int), 19)
    q = np.where(age == 0, 0, np.where((history < 4) == up, age, 3 + age))
    limit = ZERO[own.width] - 1
    return np.clip(r.astype(int), -limit, limit), up, 29 + 7 * b + q, history


def scheme(number, c):
    """A context under a scheme for one tensor."""
    if c == 0 or number == 0:
        return c
    if c < 29:
        level, age = divmod(c - 1, 4)
        side = 0 if level == 0 else 1 if level % 2 else 2
        return 1 + {1: 4 * side + age, 2: level, 3: age, 4: side, 5: 0}[number]
    place, relation = divmod(c - 29, 7)
    way = 0 if relation == 0 else 1 if relation < 4 else 2
    return {1: 13 + 3 * place + way, 2: 8 + place, 3: 5 + place // 2, 4: 4 + place // 5, 5: 2}[number]


def table(number, members, group):
    """Context -> context of the stream, for a tensor of a class in a run of so many."""
    if members == 1:
        return np.array([scheme(number, c) for c in range(169)])
    merged = [scheme(1, c) for c in range(169)]
    first = [scheme(number // 2 + 1, merged.index(m)) for m in range(max(merged) + 1)]
    return np.array([first[m] for m in merged]) + (0 if number % 2 else group * (max(first) + 1))


def few(source, name, number, context, history):
    """Residuals of a tensor that flags which of its weights moved."""
    age = np.append(history & 3, np.zeros(-history.size % 4, int)).reshape(-1, 4)
    packed = fetch(source, name, "moved", np.uint8, len(age), (age @ [1, 4, 16, 64]).astype(np.uint8))
    where = np.flatnonzero(packed[:, None] >> np.arange(4) & 1)
    merged = table(number, 1, 0)[context[where]].astype(np.uint16)
    residuals = np.zeros(history.size, np.uint8)
    residuals[where] = fetch(source, name, "residuals", np.uint8, where.size, merged) + 1
    return residuals


def signed(words):
    return (words >> 1).astype(np.int64) ^ -(words & 1).astype(np.int64)


def decode(source, base):
    """name -> `Tensor` of a checkpoint whose base is held as ``base`` ({} for a key)."""
    specs = source.specs
    sizes = {name: spec.numel for name, spec in specs.items()}
    runs, count = runs_of(sizes), len(specs)
    layout = fetch(source, "", "layout", np.uint8, 17 + 4 * count + len(runs))
    epoch = struct.unpack_from("<I", layout.tobytes())[0]
    kinds, low, high, groups = layout[17 : 17 + 4 * count].reshape(4, count).astype(int)
    schemes = layout[17 + 4 * count :].tolist()
    edged = kinds >= 32
    kinds -= 32 * edged
    edges = fetch(source, "", "edges", np.uint16, edged.sum()) if edged.any() else np.zeros(0)
    edges = iter((edges.astype(np.uint32) << 16).view(np.float32).tolist())
    staying = kinds >= 16
    kinds -= 16 * staying
    other = kinds >= 8  # multiplied by a factor
    factors = np.ones(count)
    if other.any():
        factors[other] = fetch(source, "", "factors", np.uint16, other.sum()) / 65536
    kinds -= 8 * other
    found, group_of = {}, dict(zip(specs, groups.tolist(), strict=True))
    given = fetch(source, "", "epochs", np.uint32, count) if source.has("", "epochs") else None
    for index, (name, spec) in enumerate(specs.items()):
        kind, below = int(kinds[index]), base.get(name)
        if kind >= 3:
            stored = "bfloat16" if kind == 3 else spec.dtype
            words = np.uint16 if kind == 3 else f"u{torch.finfo(dtype_of(spec.dtype)).bits // 8}"
            context = below.words if below is not None and below.kind == kind else None
            own = fetch(source, name, "values", words, sizes[name], context)
            held = torch.from_numpy(own.view(np.uint8).copy()).view(dtype_of(stored)).reshape(spec.shape)
            value = held.to(dtype_of(spec.dtype))
            found[name] = Tensor(value, own, kind, exact=value.float().reshape(-1))
        elif kind == 0:
            found[name] = Tensor(below.values, None, 0, None, None, *below.lattice)
        else:
            step = struct.unpack("<f", bytes([0, 0, low[index], high[index]]))[0]
            its = epoch if given is None else int(given[index])
            found[name] = Tensor(
                below and below.values, None, 0, None, None, step, its, ["narrow", "wide"][kind - 1]
            )
        found[name].factor = factors[index]
        found[name].edge = next(edges) if edged[index] else None
    for run, number in zip(runs, schemes, strict=True):
        members = [name for name in run if found[name].step]
        if members:
            fill_run(source, members, number, found, base, group_of)
    for name in np.array(list(specs))[staying]:
        stay(source, name, found[name], base.get(name))
    return {name: found[name] for name in specs}


def stay(source, name, own, below):
    """Writes rows that are not read off the lattice."""
    rows, spec = len(own.values), source.specs[name]
    context = None if below is None else below.still
    marks = fetch(source, name, "still", np.uint8, rows, context)
    own.still = np.where(marks == 3, 1, marks).astype(np.uint8)
    matrix = own.values.view(rows, -1)
    matrix[marks == 2] = 0
    if (marks == 1).any():
        matrix[marks == 1] = below.values.reshape(rows, -1)[marks == 1]
    if (marks == 3).any():
        count = int((marks == 3).sum()) * matrix.shape[1]
        words = fetch(source, name, "rows", f"u{own.values.element_size()}", count)
        given = torch.from_numpy(words.view(np.uint8).copy()).view(dtype_of(spec.dtype))
        matrix[marks == 3] = given.view(-1, matrix.shape[1])
    if (marks == 4).any():
        middle = own.k == 0
        own.zeros = np.zeros(own.k.size, bool)
        packed = fetch(source, name, "zeros", np.uint8, -(-int(middle.sum()) // 8))
        own.zeros[middle] = np.unpackbits(packed, count=int(middle.sum())) > 0
        if below is not None and below.zeros is not None:
            own.zeros[middle] ^= below.zeros[middle]
        own.values.view(-1)[own.zeros] = own.exact[own.zeros] = 0
    whole = (marks > 0) & (marks < 4)
    own.exact.view(rows, -1)[whole] = matrix[whole].float()


def fill_run(source, members, number, found, base, group_of):
    """Reads k and histories of a run's tensors on a lattice."""
    specs, known, cells = source.specs, {}, {}
    for name in members:
        known[name] = aims(name, found[name], base.get(name), specs[name].numel)
    sizes = [specs[name].numel for name in members]
    if source.has(members[0], "cells"):
        for name in members:
            packed = fetch(source, name, "cells", np.uint8, specs[name].numel).astype(int)
            narrow = found[name].width == "narrow"
            cells[name] = (packed // 8 - 16, packed % 8) if narrow else (packed - 128, None)
    else:
        dtype = np.uint8 if all(found[name].width == "narrow" for name in members) else np.uint16
        residuals = np.zeros(sum(sizes), dtype)
        if number >= 16:
            residuals = few(source, members[0], number - 16, *known[members[0]][2:])
        elif source.has(members[0], "residuals"):
            contexts = [table(number, len(members), group_of[name])[known[name][2]] for name in members]
            context = np.concatenate(contexts).astype(np.uint16)
            residuals = fetch(source, members[0], "residuals", dtype, residuals.size, context)
        for name, part in zip(members, np.split(residuals.astype(int), np.cumsum(sizes)[:-1]), strict=True):
            e, up, _, history = known[name]
            d = np.where(part % 2, (part + 1) // 2, -(part // 2))
            k = e + np.where(up, d, -d)
            aged = history + ((history & 3 > 0) & (history & 3 < 3))
            moved = np.where(k > e, 1, np.where(k < e, 5, aged)) if base else history
            cells[name] = k, moved if found[name].width == "narrow" else None
    far = {name: np.flatnonzero(cells[name][0] == -ZERO[found[name].width]) for name in members}
    total = sum(places.size for places in far.values())
    words = fetch(source, members[0], "outliers", np.uint32, total) if total else np.zeros(0, np.uint32)
    for name in members:
        own, below, places = found[name], base.get(name), far[name]
        k, own.history = cells[name]
        mine, words = words[: places.size], words[places.size :]
        before = np.zeros(places.size, np.int64)
        if below is not None and below.k is not None and below.lattice == own.lattice:
            theirs = below.k[places]
            before = np.where(np.abs(theirs) >= ZERO[own.width], theirs, 0)
        k[places] = (signed(mine) + before).astype(np.int32)
        own.k = k
        spec = specs[name]
        dtype, key = dtype_of(spec.dtype), key_of(own.epoch, name)
        lattice = k, own.step * own.factor, key, own.edge
        own.exact = decoded(*lattice, torch.finfo(torch.float32).max)
        own.values = decoded(*lattice, torch.finfo(dtype).max).to(dtype).reshape(spec.shape)
