"""Which of an optimizer's tensors belong to which weight: by name where a state has names, else in order.

Torch numbers parameters; `training.capture` and the frameworks' own savers put names there.  Numbers are
matched to the weights in the order of both, each to the next one of its shape; a number that is left out is a
parameter that the optimizer holds nothing for, and passes a weight over.  Where some find none, the
optimizer has groups, as a rule matrices that decay and vectors that do not, and both are matched apart.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence

from torch import Tensor

from dynaquant_core.lazy import lazy
from dynaquant_core.state.aliases import bare_name
from dynaquant_core.state.leaves import Leaf, Path

__all__ = ["Owned", "owned_by"]

#: Kind ("exp_avg", "step", ...) -> tensor.
Owned = Mapping[str, Tensor]
Shape = tuple[int, ...]

#: Buffers that lie among the parameters they are of the shape of.
STATISTICS = ("running_mean", "running_var")


def owned_by(leaves: Sequence[Leaf], weights: Sequence[str]) -> dict[str, Owned]:
    """The optimizer's tensors of each weight that it trains.

    Args:
        leaves: of a whole state.
        weights: names of the leaves that are weights.

    Returns:
        Weight name -> kind -> tensor, for every weight that an optimizer holds something for.

    Example:
        >>> import torch
        >>> from dynaquant_core.state.tree import flatten
        >>> adam = {"state": {0: {"exp_avg": torch.ones(4)}}, "param_groups": []}
        >>> leaves = flatten({"model": {"w": torch.zeros(4)}, "optimizer": adam}).leaves
        >>> list(owned_by(leaves, ["model.w"])["model.w"])
        ['exp_avg']
    """
    wanted = set(weights)
    shapes = {leaf.name: tuple(leaf.tensor.shape) for leaf in leaves if leaf.name in wanted}
    found: dict[str, Owned] = {}
    names = _Names(shapes)
    for entries in _optimizers(leaves).values():
        for key, owned in entries.items():
            owner = names.ending(key) if isinstance(key, str) else None
            if owner is not None:
                found.setdefault(owner, owned)
        numbered = {key: owned for key, owned in entries.items() if isinstance(key, int)}
        free = {name: shape for name, shape in shapes.items() if name not in found}
        found |= {owner: numbered[key] for key, owner in _in_order(numbered, free).items()}
    return found


def _optimizers(leaves: Sequence[Leaf]) -> dict[Path, dict[str | int, dict[str, Tensor]]]:
    """Path of a ``state`` node -> parameter's key in it -> kind -> tensor."""
    found: dict[Path, dict[str | int, dict[str, Tensor]]] = {}
    for leaf in leaves:
        if leaf.in_optimizer and "state" in leaf.path[:-2]:
            place = max(at for at, key in enumerate(leaf.path[:-2]) if key == "state") + 1
            entries = found.setdefault(leaf.path[:place], {})
            entries.setdefault(leaf.path[place], {})[str(leaf.path[-1])] = leaf.tensor
    return found


class _Names:
    """Weights by what their names end with; worked out once, since every parameter asks."""

    def __init__(self, weights: Iterable[str]) -> None:
        self._weights = list(weights)

    def ending(self, key: str) -> str | None:
        """The weight that ends with a parameter's name, after as little else as possible.

        Wrappers' names count last.
        """
        found = self._plain.get(key)
        return self._bare.get(bare_name(key)) if found is None else found

    @lazy
    def _plain(self) -> dict[str, str]:
        return _by_tail({name: name for name in self._weights})

    @lazy
    def _bare(self) -> dict[str, str]:
        return _by_tail({name: bare_name(name) for name in self._weights})


def _by_tail(names: Mapping[str, str]) -> dict[str, str]:
    """Each dotted tail of a name -> the key of the shortest name, counted in dots, that ends with it."""
    found: dict[str, str] = {}
    for own, name in sorted(names.items(), key=lambda item: item[1].count(".")):
        parts = name.split(".")
        for start in range(len(parts)):
            found.setdefault(".".join(parts[start:]), own)
    return found


def _in_order(entries: Mapping[int, Owned], weights: Mapping[str, Shape]) -> dict[int, str]:
    """Matches numbers to weights; those of normalisation's running statistics are no parameters."""
    shapes = {
        number: {tuple(tensor.shape) for tensor in entries[number].values() if tensor.dim()}
        for number in sorted(entries)
    }
    trained = {name: shape for name, shape in weights.items() if not name.endswith(STATISTICS)}
    whole = _aligned(shapes, trained)
    if len(whole) == len(shapes):
        return whole
    found: dict[int, str] = {}
    for flat in (False, True):
        some = {name: shape for name, shape in trained.items() if (len(shape) < 2) == flat}
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
