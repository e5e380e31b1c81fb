"""Which tensors of a save stay on the lattice that they have, in a run, in a key, after a restore (ours)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from math import inf

import numpy as np
from torch import Tensor

from dynaquant_core.methods.base import Hints
from dynaquant_core.methods.lattice.bound import Bound
from dynaquant_core.methods.lattice.cells import Alphabet, Cells, cells_of
from dynaquant_core.methods.lattice.held import Held
from dynaquant_core.methods.lattice.looks import LOOK, found_once, stats_of, those
from dynaquant_core.methods.lattice.parts import parts_of
from dynaquant_core.methods.lattice.rows import StillRows, holds_rows
from dynaquant_core.quantize.flat import flatten
from dynaquant_core.quantize.lattice import steps_of, surroundings
from dynaquant_core.state.raw import words_of
from dynaquant_core.state.spec import TensorSpec

__all__ = ["Lattice", "standing", "staying"]

#: A frozen tensor keeps its step up to so many times what the scale asks for.
WIDEST = 2.0
#: Any other tensor keeps its step while a fresh one is within this factor of it; looked at where the step no
#: longer suits the values.
OUTGROWN = 4.0
#: A bounded one keeps it up to so many times its bound, as the tensor shrinks.
SHRUNK = 1.5
#: Spreads within which 99 in 100 values of a bell-shaped tensor lie.
BELL = 2.576


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
        edge: that none of its values passes (`signs`).
    """

    step: float
    epoch: int
    alphabet: Alphabet | None = None
    spread: float = 0.0
    factor: float = 1.0
    still: bool = False
    rows: StillRows | None = None
    edge: float | None = None

    @property
    def drawn_in(self) -> float:
        """The step in which weights are whole numbers: values that were decoded, in that of the decoding."""
        return self.step * self.factor if self.still else self.step


def staying(
    names: Iterable[str],
    state: Mapping[str, Tensor],
    base: Held,
    scale: float,
    hints: Hints,
    bound: Bound,
    *,
    key: bool,
) -> dict[str, Lattice]:
    """Those that stay on the lattice of the run's last checkpoint.

    Of a key only what is still, and so of what this life of the run began on.
    """
    cells = _cells(names, state, base, key=key)
    free = {name: held for name, held in cells.items() if not (key or base.is_start(name))}
    asked = [name for name, held in cells.items() if name not in free or held.factor < 1]
    still = _still(cells, asked, state, hints, key=key)
    stay: AbstractSet[str] = still - free.keys()
    if free and base.scale == scale:
        stay |= free.keys() - _outgrown(free, state, scale, hints, bound)
    elif free:
        frozen = found_once(
            "frozen", hints, lambda: those(lambda name: _is_frozen(free[name], state[name]), free)
        )
        steps = steps_of(scale, stats_of(state, hints, bound)) if frozen else {}
        stay |= {name for name in frozen if free[name].step <= WIDEST * steps[name]}
    # What is still loses nothing on its lattice, whatever the scale, and would take noise on another.
    stood = standing(cells.keys() - stay, state, base, hints, key=key)
    return {name: _same(cells[name], still=name in still) for name in stay} | stood


def standing(
    names: Iterable[str], state: Mapping[str, Tensor], base: Held, hints: Hints, *, key: bool
) -> dict[str, Lattice]:
    """Those that are, in every bit, what the run's last checkpoint decodes to.

    No checkpoint is too good for them: what one beyond the lattice gave as a value would be put on another
    lattice by the next, and get the noise of that when it is restored.
    """
    cells = _cells(names, state, base, key=key)
    return {name: _same(cells[name], still=True) for name in _still(cells, cells, state, hints, key=key)}


def _cells(names: Iterable[str], state: Mapping[str, Tensor], base: Held, *, key: bool) -> dict[str, Cells]:
    """What is on a lattice; for a key, all of it: a key would have to give other rows value by value."""
    return {
        name: held
        for name in names
        if isinstance(held := base.tensors.get(name), Cells)
        and held.spec == TensorSpec.of(state[name])
        and not (key and holds_rows(held.rows))
    }


def _still(
    cells: Mapping[str, Cells], names: Iterable[str], state: Mapping[str, Tensor], hints: Hints, *, key: bool
) -> frozenset[str]:
    """Which of the names are still, each looked at once a save; a key and a delta may ask of other bases."""
    known: dict[str, bool] = hints.scratch.setdefault(("lattice", "still", key), {})
    asked = [name for name in names if name not in known]
    found = those(lambda name: _is_still(cells[name], state[name]), asked)
    known |= {name: name in found for name in asked}
    return frozenset(name for name in names if known[name])


def _outgrown(
    cells: Mapping[str, Cells], state: Mapping[str, Tensor], scale: float, hints: Hints, bound: Bound
) -> frozenset[str]:
    """Tensors whose values have come to spread far wider or narrower than when their lattice was drawn.

    Or that have moved far since, where a search bounds steps by that.
    """
    widest = {name: bound.of(name, state[name], hints) for name in cells}

    def is_odd(name: str) -> bool:
        held, tensor = cells[name], state[name]
        return not _suits(held, tensor, widest[name], may_widen=name in hints.moved)

    odd = found_once("odd", hints, lambda: those(is_odd, cells))
    stats = stats_of(state, hints, bound) if odd else {}
    steps = steps_of(scale, stats) if odd else {}
    wide = frozenset(
        name
        for name in odd
        if cells[name].step > min(OUTGROWN * steps[name], _most(SHRUNK * widest[name], stats[name].std))
    )
    narrow = {name for name in odd if cells[name].step < steps[name] / OUTGROWN}
    return wide | those(lambda name: not _is_frozen(cells[name], state[name]), narrow)


def _most(widest: float, std: float) -> float:
    """A step of so many spreads; infinity where there is no bound, or nothing to measure it by."""
    return widest * std if 0 < std < inf and widest < inf else inf


def _suits(held: Cells, tensor: Tensor, widest: float, *, may_widen: bool) -> bool:
    """Whether most values are further than a step from their median, and most have a cell; of a sample.

    And whether the step is about within its bound, in spreads, and not far below it where it may widen.
    """
    _, usual = surroundings(flatten(tensor))
    if may_widen and held.step * OUTGROWN < _most(widest, usual / BELL):
        return False
    return (
        held.step <= min(usual, _most(widest, usual * SHRUNK / BELL))
        and usual < held.alphabet.zero * held.step
    )


def _same(held: Cells, *, still: bool) -> Lattice:
    """The lattice that a base holds a tensor on."""
    return Lattice(
        held.step,
        held.epoch,
        held.alphabet,
        factor=held.factor,
        still=still,
        rows=held.rows,
        edge=held.edge,
    )


def _is_still(held: Cells, tensor: Tensor) -> bool:
    """Whether a tensor has every bit that ``held`` decodes to; most others differ in their first values."""
    flat = flatten(tensor)
    if held.rows is None and not np.array_equal(words_of(flat[:LOOK]), words_of(held.head(LOOK).tensor())):
        return False
    return all(np.array_equal(words_of(flat[part]), words_of(now)) for part, now in parts_of(held))


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
