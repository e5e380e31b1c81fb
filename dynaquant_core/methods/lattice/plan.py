"""On which lattice each tensor of a save goes: its base's, or a new one."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace

import numpy as np
import xxhash
from torch import Tensor

from dynaquant_core.methods.base import Hints
from dynaquant_core.methods.lattice.bound import Bound
from dynaquant_core.methods.lattice.cells import Alphabet, Cells, cells_of
from dynaquant_core.methods.lattice.held import Held
from dynaquant_core.methods.lattice.norm import shortening, squares
from dynaquant_core.methods.lattice.rows import StillRows, find_rows, holds_rows
from dynaquant_core.quantize.flat import flatten
from dynaquant_core.quantize.lattice import TensorStat, spread, steps_of, surroundings
from dynaquant_core.state.raw import words_of
from dynaquant_core.threads import map_threads

__all__ = ["Lattice", "Plan", "fresh_epoch", "next_epoch", "plan"]

#: Weights of each tensor that the first epoch of a chain depends on.
DRAWN_FROM = 1 << 10
#: Values of a tensor that are looked at before all of them are.
LOOK = 1 << 8
#: A frozen tensor keeps its step up to so many times what the scale asks for.
WIDEST = 2.0
#: Any other tensor keeps its step while a fresh one is within this factor of it; looked at where the step no
#: longer suits the values.
OUTGROWN = 4.0


@dataclass(frozen=True, slots=True)
class Lattice:
    """Where one tensor goes.

    Args:
        step: of the lattice.
        epoch: of the lattice.
        alphabet: of a lattice that stays; None: to be chosen.
        spread: of the tensor's values, where it was measured; else 0.
        factor: that values are multiplied by beside the step (`norm`).
        still: the tensor has the very values that its base decodes to.
        rows: of the tensor that stay what they are.
    """

    step: float
    epoch: int
    alphabet: Alphabet | None = None
    spread: float = 0.0
    factor: float = 1.0
    still: bool = False
    rows: StillRows | None = None

    @property
    def drawn_in(self) -> float:
        """The step in which weights are whole numbers: values that were decoded, in that of the decoding."""
        return self.step * self.factor if self.still else self.step


@dataclass(frozen=True, slots=True)
class Plan:
    """Where every tensor goes.

    Args:
        lattices: by name; None: on none, but in words, which of equal values are next to nothing.
        epoch: of the newest lattice.
    """

    lattices: Mapping[str, Lattice | None]
    epoch: int


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
    is: its noise would add up from restore to restore.
    """
    bound = bound or Bound()
    level = _found("level", hints, lambda: _those(lambda name: _is_level(state[name]), state))
    rough = [name for name in state if name not in level]
    epoch = fresh_epoch(state) if base is None else next_epoch(base)
    lattices = {} if base is None else _kept(rough, state, base, scale, hints, bound)
    new = [name for name in rough if name not in lattices]
    if new:
        stats = _stats(state, hints, bound)
        steps = steps_of(scale, stats)  # which depend on all tensors
        lattices |= {name: Lattice(steps[name], epoch, None, stats[name].std) for name in new}
    lengths = squares(state, hints) if keep_norm else {}
    rows = _rows(rough, state, base, lattices, hints)
    return Plan(
        {name: _finished(lattices.get(name), lengths.get(name, 0.0), rows.get(name)) for name in state},
        epoch,
    )


def _finished(lattice: Lattice | None, square: float, rows: StillRows | None) -> Lattice | None:
    """Multiplies a tensor that keeps its norm by a factor; one that is still keeps the factor it has."""
    if lattice is None:
        return None
    factor = lattice.factor if lattice.still else shortening(lattice.step, square)
    return replace(lattice, factor=factor, rows=rows)


def _rows(
    names: Iterable[str],
    state: Mapping[str, Tensor],
    base: Held | None,
    lattices: Mapping[str, Lattice],
    hints: Hints,
) -> dict[str, StillRows | None]:
    """Rows that stay, of each tensor; looked for once a save and base, whatever the number of drafts.

    Only embeddings have rows that no gradient may reach.
    """

    def find(name: str) -> StillRows | None:
        own = None if base is None else base.tensors[name]
        below = own.rows if isinstance(own, Cells) else None
        if lattices[name].still:
            return below
        began = base is not None and base.restored
        asked = hints.layer_types.get(name) == "embedding" and (began or holds_rows(below))
        values = own.tensor() if own is not None and asked else None
        return find_rows(state[name], below, values, everywhere=began)

    key, asked = ("lattice", "rows", base is None), list(names)
    if key not in hints.scratch:
        hints.scratch[key] = dict(zip(asked, map_threads(find, asked), strict=True))
    found: dict[str, StillRows | None] = hints.scratch[key]
    return found


def _kept(
    names: Iterable[str],
    state: Mapping[str, Tensor],
    base: Held,
    scale: float,
    hints: Hints,
    bound: Bound,
) -> dict[str, Lattice]:
    """Those that stay on their base's lattice."""
    cells = {name: held for name in names if isinstance(held := base.tensors[name], Cells)}
    asked = [name for name, held in cells.items() if base.restored or held.factor < 1]
    still = _found("still", hints, lambda: _those(lambda name: _is_still(cells[name], state[name]), asked))
    stay: Collection[str] = still
    if not base.restored and base.scale == scale:
        stay = cells.keys() - _outgrown(cells, state, scale, hints, bound)
    elif not base.restored:
        frozen = _found(
            "frozen", hints, lambda: _those(lambda name: _is_frozen(cells[name], state[name]), cells)
        )
        steps = steps_of(scale, _stats(state, hints, bound)) if frozen else {}
        stay = [name for name in frozen if cells[name].step <= WIDEST * steps[name]]
    return {name: _same(cells[name], still=name in still) for name in stay}


def _outgrown(
    cells: Mapping[str, Cells], state: Mapping[str, Tensor], scale: float, hints: Hints, bound: Bound
) -> frozenset[str]:
    """Tensors whose values have come to spread far wider or narrower than when their lattice was drawn."""
    odd = _found("odd", hints, lambda: _those(lambda name: not _suits(cells[name], state[name]), cells))
    steps = steps_of(scale, _stats(state, hints, bound)) if odd else {}
    wide = frozenset(name for name in odd if cells[name].step > OUTGROWN * steps[name])
    narrow = {name for name in odd if cells[name].step < steps[name] / OUTGROWN}
    return wide | _those(lambda name: not _is_frozen(cells[name], state[name]), narrow)


def _suits(held: Cells, tensor: Tensor) -> bool:
    """Whether most values are further than a step from their median, and most have a cell; of a sample."""
    _, usual = surroundings(flatten(tensor))
    return held.step <= usual < held.alphabet.zero * held.step


def _same(held: Cells, *, still: bool) -> Lattice:
    """The lattice that a base holds a tensor on."""
    return Lattice(held.step, held.epoch, held.alphabet, factor=held.factor, still=still)


def _is_level(tensor: Tensor) -> bool:
    """Whether all values are equal: biases before training, frozen masks."""
    flat = flatten(tensor)
    first = flat[:LOOK]
    return bool((first == first[:1]).all()) and bool((flat == flat[:1]).all())


def _is_still(held: Cells, tensor: Tensor) -> bool:
    """Whether a tensor has every bit that ``held`` decodes to; most others differ in their first values."""
    flat = flatten(tensor)
    if held.rows is None and not np.array_equal(words_of(flat[:LOOK]), words_of(held.head(LOOK).tensor())):
        return False
    return np.array_equal(words_of(flat), words_of(held.tensor()))


def _is_frozen(held: Cells, tensor: Tensor) -> bool:
    """Whether every weight of a tensor lies in the cell where ``held`` has it."""
    flat = flatten(tensor)
    return _same_cells(held.head(LOOK), flat[:LOOK]) and _same_cells(held, flat)


def _same_cells(held: Cells, flat: Tensor) -> bool:
    now = cells_of(held.name, flat, held.step, held.epoch, held.alphabet, 0.0)
    if now is None or not np.array_equal(now.outliers, held.outliers):
        return False
    shift = held.alphabet.shift
    return np.array_equal(now.packed >> shift, held.packed >> shift)


def _those(holds: Callable[[str], bool], names: Iterable[str]) -> frozenset[str]:
    """The names of which something holds."""
    asked = list(names)
    return frozenset(name for name, yes in zip(asked, map_threads(holds, asked), strict=True) if yes)


def _found(what: str, hints: Hints, find: Callable[[], frozenset[str]]) -> frozenset[str]:
    """Looks once a save, whatever the number of drafts."""
    key = ("lattice", what)
    if key not in hints.scratch:
        hints.scratch[key] = find()
    names: frozenset[str] = hints.scratch[key]
    return names


def _stats(state: Mapping[str, Tensor], hints: Hints, bound: Bound) -> dict[str, TensorStat]:
    """Measured once a save, whatever the number of drafts."""
    known: dict[str, TensorStat] | None = hints.scratch.get(("lattice", "stats", bound))
    if known is None:
        spreads = map_threads(spread, list(state.values()))
        known = {
            name: TensorStat(
                tensor.numel(), std, _fisher(name, hints), tensor.dim() == 1, bound.of(name, tensor, hints)
            )
            for (name, tensor), std in zip(state.items(), spreads, strict=True)
        }
        hints.scratch["lattice", "stats", bound] = known
    return known


def _fisher(name: str, hints: Hints) -> float | None:
    """Mean squared gradient: the optimizer's own, else of the gradient's average."""
    if name in hints.fisher:
        return hints.fisher[name]
    gradient = hints.gradients.get(name)
    return None if gradient is None else float(gradient.detach().double().square().mean())


def next_epoch(base: Held) -> int:
    """The epoch of lattices that follow a base: another one after a restore."""
    return (base.epoch + base.restored) % 2**32


def fresh_epoch(state: Mapping[str, Tensor]) -> int:
    """The epoch of a chain's first lattice: a digest of the weights, so that no two chains share offsets."""
    digest = xxhash.xxh3_64(seed=len(state))
    for tensor in state.values():
        digest.update(words_of(tensor.detach().reshape(-1)[:DRAWN_FROM]).tobytes())
    return digest.intdigest() & 0xFFFFFFFF
