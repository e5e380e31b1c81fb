"""Which of an optimizer's tensors belong to which weight: it says itself, else names do, else their order.

Torch numbers parameters; `training.capture` and the frameworks' own savers put names there.  Whose a number
is the run's optimizer tells by the tensors that it holds (`live`), and in a file the order of shapes, where
it tells anything (`numbers`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from torch import Tensor
from torch.optim import Optimizer

from dynaquant_core.lazy import lazy
from dynaquant_core.state.aliases import bare_name
from dynaquant_core.state.given import STATISTICS
from dynaquant_core.state.leaves import Leaf, Path
from dynaquant_core.state.live import Live
from dynaquant_core.state.numbers import Owned, Shape, by_number

__all__ = ["Owned", "owned_by"]


def owned_by(
    leaves: Sequence[Leaf],
    weights: Sequence[str],
    *,
    optimizers: Iterable[Optimizer] = (),
    parameters: Mapping[str, Tensor] | None = None,
    untrained: frozenset[str] = frozenset(),
) -> dict[str, Owned]:
    """The optimizer's tensors of each weight that it trains.

    Args:
        leaves: of a whole state.
        weights: names of the leaves that are weights.
        optimizers: of the run, if the state's tensors are theirs: they know whose is what.
        parameters: of the model, by name.
        untrained: names of weights that no number is matched to: buffers, frozen ones.

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
    own = [leaf for leaf in leaves if leaf.name in wanted]
    names = _Names(leaf.name for leaf in own)
    live = Live(optimizers, {leaf.name: leaf.tensor for leaf in own}, parameters or {}, names.ending)
    found: dict[str, Owned] = {}
    numbered: list[dict[int, Owned]] = []
    for entries in _optimizers(leaves).values():
        known = {key: live.owner(owned) for key, owned in entries.items() if live.knows(owned)}
        known |= {key: names.ending(key) for key in entries if isinstance(key, str) and key not in known}
        for key, owner in known.items():
            if owner is not None:
                found.setdefault(owner, entries[key])
        numbered.append(
            {key: owned for key, owned in entries.items() if isinstance(key, int) and key not in known}
        )
    if any(numbered):
        found |= by_number(numbered, _trainable(own, untrained | found.keys()))
    return found


def _trainable(weights: Iterable[Leaf], others: frozenset[str]) -> dict[Path, dict[str, Shape]]:
    """Path of a dictionary -> shapes by name of the weights in it, without others and running statistics."""
    found: dict[Path, dict[str, Shape]] = {}
    for leaf in weights:
        if leaf.name in others or leaf.name.endswith(STATISTICS) or not leaf.tensor.is_floating_point():
            continue
        found.setdefault(leaf.path[:-1], {})[leaf.name] = tuple(leaf.tensor.shape)
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
