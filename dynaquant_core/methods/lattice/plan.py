"""On which lattice each tensor of a save goes: its base's, or a new one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

import xxhash
from torch import Tensor

from dynaquant_core.methods.base import Hints, Reference
from dynaquant_core.methods.lattice.bound import Bound
from dynaquant_core.methods.lattice.held import Held, Rows
from dynaquant_core.methods.lattice.looks import found_once, is_level, stats_of, those
from dynaquant_core.methods.lattice.norm import shortening, squares
from dynaquant_core.methods.lattice.parts import parts_of
from dynaquant_core.methods.lattice.rows import StillRows, find_rows, holds_rows
from dynaquant_core.methods.lattice.signs import edge_of, nearest_zero
from dynaquant_core.methods.lattice.stays import Lattice, standing, staying
from dynaquant_core.methods.words import Plain
from dynaquant_core.quantize.lattice import scattered, steps_of
from dynaquant_core.state.raw import words_of
from dynaquant_core.threads import map_threads

__all__ = ["Plan", "fresh_epoch", "next_epoch", "plan", "plan_beyond"]

#: Weights of each tensor that the first epoch of a chain depends on: the first ones, and as many all over it,
#: since first rows may be what nobody trains.
DRAWN_FROM = 1 << 10


@dataclass(frozen=True, slots=True)
class Plan:
    """Where every tensor goes.

    Args:
        lattices: by name; None: on none, but in words.
        epoch: of the newest lattice.
        began: epochs of the lattices that this life of the run began on, by name (`Held`).
        unmoved: of tensors in words, which rows are what it began on (`Held`).
    """

    lattices: Mapping[str, Lattice | None]
    epoch: int
    began: Mapping[str, int]
    unmoved: Mapping[str, Rows] = field(default_factory=dict)


def plan(
    state: Mapping[str, Tensor],
    base: Held | None,
    scale: float,
    hints: Hints,
    bound: Bound | None = None,
    *,
    keep_norm: bool = True,
) -> Plan:
    """Plans a save; steps that are drawn keep the bound, if there is one, and some tensors their norm.

    A lattice stays while the scale does, the run goes on and values spread about as wide as its cells:
    weights that shrank would be lost in the noise of their old step, and of those that grew most would be
    outliers.  Where the scale changes, a frozen tensor's stays too, unless its steps are too wide now: it
    costs nothing there.  After a restore every offset is drawn anew: the weights began on points of the old
    lattice and would snap back to them.  Only a tensor that still is what the base decodes to stays where it
    is, until it moves: its noise would add up from restore to restore.  That holds for a key too, in a run.
    """
    bound = bound or Bound()
    level = found_once("level", hints, lambda: those(lambda name: is_level(state[name]), state))
    rough = [name for name in state if name not in level]
    epoch = fresh_epoch(state) if base is None else next_epoch(base)
    last = hints.before if base is None else base
    lattices = (
        staying(rough, state, last, scale, hints, bound, key=base is None) if isinstance(last, Held) else {}
    )
    new = [name for name in rough if name not in lattices]
    if new:
        stats = stats_of(state, hints, bound)
        steps = steps_of(scale, stats)  # which depend on all tensors
        lattices |= {name: Lattice(steps[name], epoch, None, stats[name].std) for name in new}
    lengths = squares(state, hints) if keep_norm else {}
    rows = _rows(rough, state, base, lattices, hints, lattice=True)
    nearest = _nearest(rough, state, rows, hints, key=base is None)
    goes = {
        name: _finished(lattices[name], lengths.get(name, 0.0), rows[name], nearest[name]) for name in rough
    }
    return Plan({name: goes.get(name) for name in state}, epoch, _began(last, goes))


def plan_beyond(state: Mapping[str, Tensor], base: Held | None, hints: Hints) -> Plan:
    """Plans a save beyond the lattice, exact or in bfloat16: only what is still stays where it is.

    Which rows of the others are what the run was restored to has to be remembered, for the next on a lattice.
    """
    last = hints.before if base is None else base
    stood = standing(state, state, last, hints, key=base is None) if isinstance(last, Held) else {}
    epoch = fresh_epoch(state) if base is None else next_epoch(base)
    asked = [] if base is None else [name for name in state if base.rows_begun(name) is not None]
    rows = _rows([name for name in asked if name not in stood], state, base, stood, hints, lattice=False)
    unmoved = {name: own.held() for name, own in rows.items() if own is not None and holds_rows(own)}
    return Plan({name: stood.get(name) for name in state}, epoch, _began(last, stood), unmoved)


def _began(last: Reference | None, lattices: Mapping[str, Lattice]) -> dict[str, int]:
    """What the run's last checkpoint knows of where its life began, and what this save sees still."""
    known = last.began if isinstance(last, Held) else {}
    return {**known, **{name: goes.epoch for name, goes in lattices.items() if goes.still}}


def _finished(lattice: Lattice, square: float, rows: StillRows | None, nearest: float | None) -> Lattice:
    """Multiplies a tensor that keeps its norm by a factor; one of a single sign is held to its side of zero.

    One that is still keeps the factor and the edge that it has.
    """
    if lattice.still:
        return replace(lattice, rows=rows)
    factor = shortening(lattice.step, square)
    return replace(lattice, factor=factor, rows=rows, edge=edge_of(nearest, lattice.step, factor))


def _rows(
    names: Iterable[str],
    state: Mapping[str, Tensor],
    base: Held | None,
    lattices: Mapping[str, Lattice],
    hints: Hints,
    *,
    lattice: bool,
) -> dict[str, StillRows | None]:
    """Rows that stay, of each tensor; looked for once a save and base, whatever the number of drafts.

    Of tokens that do not occur, experts that are not asked, units that are dead.  Where all of a tensor stays
    that goes on a lattice, none is named: it takes its noise once, and after that costs nothing, in keys too.
    """

    def find(name: str) -> StillRows | None:
        if name in lattices and lattices[name].still:
            return lattices[name].rows
        asked = None if base is None else base.rows_begun(name)
        if base is None or asked is None:
            return find_rows(state[name])
        own = base.tensors[name]
        rounded = isinstance(own, Plain) and own.bf16 and not base.restored
        found = find_rows(state[name], parts_of(own), asked, rounded=rounded)
        if lattice and found is not None and not found.move():
            return find_rows(state[name])
        return found

    known: dict[str, StillRows | None] = hints.scratch.setdefault(
        ("lattice", "rows", base is None, lattice), {}
    )
    asked = [name for name in names if name not in known]
    known |= dict(zip(asked, map_threads(find, asked), strict=True))
    return known


def _nearest(
    names: Iterable[str],
    state: Mapping[str, Tensor],
    rows: Mapping[str, StillRows | None],
    hints: Hints,
    *,
    key: bool,
) -> dict[str, float | None]:
    """Values nearest to zero, of tensors without two signs; looked for once a save and base, as rows are."""
    place, asked = ("lattice", "signs", key), list(names)
    if place not in hints.scratch:
        found = map_threads(lambda name: nearest_zero(state[name], rows[name]), asked)
        hints.scratch[place] = dict(zip(asked, found, strict=True))
    known: dict[str, float | None] = hints.scratch[place]
    return known


def next_epoch(base: Held) -> int:
    """The epoch of lattices that follow a base: another one after a restore.

    And where a tensor was found to lie on a lattice of the base's epoch: it must be drawn on one of another.
    """
    taken = any(base.is_start(name) and own.epoch == base.epoch for name, own in base.cells())
    return (base.epoch + (base.restored or taken)) % 2**32


def fresh_epoch(state: Mapping[str, Tensor]) -> int:
    """The epoch of a chain's first lattice: a digest of the weights, so that no two chains share offsets."""
    digest = xxhash.xxh3_64(seed=len(state))
    for tensor in state.values():
        flat = tensor.detach().reshape(-1)
        digest.update(words_of(flat[:DRAWN_FROM]).tobytes())
        if flat.numel() > DRAWN_FROM:
            places = scattered(flat.numel(), DRAWN_FROM).to(flat.device)
            digest.update(words_of(flat[places]).tobytes())
    return digest.intdigest() & 0xFFFFFFFF
