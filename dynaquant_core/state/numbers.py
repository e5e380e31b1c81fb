"""Which weights the numbers of an optimizer's state mean, in a state that does not say.

Numbers are matched to the weights in the order of both, each to the next one of its shape; a number that is
left out is a parameter that the optimizer holds nothing for, and passes a weight over.  Where some find none,
the optimizer has groups, as a rule matrices that decay and vectors that do not, and both are matched apart.

An order of shapes says nothing where there are more weights of a shape than numbers: some are frozen, or are
buffers, and what is taken for a trained one gets noise that no training takes out.  Then the numbers of that
shape mean nobody.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final

from torch import Tensor

from dynaquant_core.state.leaves import Path
from dynaquant_core.state.places import MOMENT_KINDS

__all__ = ["Owned", "Shape", "by_number"]

#: Kind ("exp_avg", "step", ...) -> tensor.
Owned = Mapping[str, Tensor]
Shape = tuple[int, ...]

#: What begins a word in keys of what holds other models than the one that is trained, and what is one of
#: itself: "semantic" and "schema" hold it by chance.
AVERAGES: Final = ("average", "shadow", "teacher", "target")
EMA: Final = "ema"

#: A word of a key: "model_ema", "emaModel" and "EMA2" have each the one.
WORD: Final = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")


def by_number(
    numbered: Sequence[Mapping[int, Owned]], sets: Mapping[Path, Mapping[str, Shape]]
) -> dict[str, Owned]:
    """Weight -> kind -> tensor, as far as numbers tell.

    Args:
        numbered: number -> kind -> tensor, of each optimizer.
        sets: path of a dictionary -> shapes of the weights in it that may be meant, by name.
    """
    own = [{number: _shapes(entries[number]) for number in sorted(entries)} for entries in numbered]
    free, told = _meant(own, sets)
    names = list(free)
    if len(own) == 1 and _are_in_place(own[0], list(free.values())):
        return {names[number]: owned for number, owned in numbered[0].items()}
    found: dict[str, Owned] = {}
    for entries, shapes in zip(numbered, own, strict=True):
        rest = {name: shape for name, shape in free.items() if name not in found}
        found |= {owner: entries[number] for number, owner in _in_order(shapes, rest).items()}
    return {name: owned for name, owned in found.items() if free[name] in told}


def _shapes(owned: Owned) -> set[Shape]:
    """Shapes that the parameter may have: rows and columns of one are not its own."""
    return {
        tuple(tensor.shape)
        for kind, tensor in owned.items()
        if tensor.dim() and MOMENT_KINDS.get(kind) != "factor"
    }


def _meant(
    own: Sequence[Mapping[int, set[Shape]]], sets: Mapping[Path, Mapping[str, Shape]]
) -> tuple[dict[str, Shape], set[Shape]]:
    """The weights that numbers can mean, and the shapes of which they tell whose they are.

    All of a state, or all but averages of a model, or the one dictionary that holds what is trained: the
    first of these with as many weights of each shape as numbers.
    """
    held = Counter(shape for each in own for some in each.values() for shape in some)

    def told(weights: Mapping[str, Shape]) -> set[Shape]:
        if len(own) == 1 and _are_in_place(own[0], list(weights.values())):
            return set(weights.values()) | held.keys()
        there = Counter(weights.values())
        return {shape for shape, count in held.items() if there[shape] == count}

    trained = {path: weights for path, weights in sets.items() if not _is_average(path)}
    whole, rest = _joined(sets), _joined(trained)
    for weights in (whole, rest):
        if told(weights) >= held.keys():
            return weights, told(weights)
    alone = [weights for weights in trained.values() if told(weights) >= held.keys()]
    found = dict(alone[0]) if len(alone) == 1 else rest
    return found, told(found)


def _are_in_place(own: Mapping[int, set[Shape]], weights: Sequence[Shape]) -> bool:
    """Whether numbers count all weights, those left out too, and each has the shape of the one it counts."""
    counted = len(weights) == max(own, default=-1) + 1
    return counted and all(not some or weights[number] in some for number, some in own.items())


def _is_average(path: Path) -> bool:
    words = (word.lower() for key in path for word in WORD.findall(str(key)))
    return any(word == EMA or word.startswith(AVERAGES) for word in words)


def _joined(sets: Mapping[Path, Mapping[str, Shape]]) -> dict[str, Shape]:
    return {name: shape for weights in sets.values() for name, shape in weights.items()}


def _in_order(shapes: Mapping[int, set[Shape]], weights: Mapping[str, Shape]) -> dict[int, str]:
    """Matches ascending numbers to weights."""
    whole = _aligned(shapes, weights)
    if len(whole) == len(shapes):
        return whole
    found: dict[int, str] = {}
    for flat in (False, True):
        some = {name: shape for name, shape in weights.items() if (len(shape) < 2) == flat}
        found |= _aligned(shapes, some)
    return found


def _aligned(shapes: Mapping[int, set[Shape]], weights: Mapping[str, Shape]) -> dict[int, str]:
    """Gives each number the next weight of one of its shapes.

    A number that finds none passes nothing over.  One that is not there passes a weight over, if the numbers
    on both sides of it find some.
    """
    names, place, before, known = list(weights), 0, -1, True
    # Ascending places of each shape: a walk along the names would be quadratic where few numbers match.
    places: dict[Shape, list[int]] = {}
    for at, shape in enumerate(weights.values()):
        places.setdefault(shape, []).append(at)
    found: dict[int, str] = {}
    for number, own in shapes.items():
        start = place + (number - before - 1 if known else 0)
        following = [at for shape in own for at in _first(places.get(shape, []), start)]
        before, known = number, bool(following)
        if following:
            at = min(following)
            found[number], place = names[at], at + 1
    return found


def _first(places: Sequence[int], start: int) -> Sequence[int]:
    """The first of ascending places that is not before ``start``, if there is one."""
    at = bisect_left(places, start)
    return places[at : at + 1]
