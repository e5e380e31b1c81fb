"""Where in a state an optimizer's tensors lie, by the names of what holds them.

Torch's optimizers say ``{state, param_groups}``.  Others keep a form of their own: lists of moments by kind,
masters in float32.  Nothing of that may be taken for a weight: a second moment that noise has made negative
is a NaN one step later.  What holds such a form is known by what it is called (`called`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Final, Literal

from dynaquant_core.state.leaves import Leaf, Path

__all__ = [
    "LARGEST",
    "MOMENTS",
    "MOMENT_KINDS",
    "Kind",
    "Place",
    "apart",
    "is_node",
    "kind_name",
    "place_and_name",
    "places_of",
]

#: Path of a container, and what comes before the last dot of a key in it.
Place = tuple[Path, str]

Kind = Literal["first", "second", "factor", "centre"]

#: Names of optimizer tensors that are running averages, and of what: of gradients or of
#: steps ("first"), of their squares or magnitudes, never negative ("second"), rows or columns of the latter
#: ("factor"), or of gradients whose square is taken from a second moment ("centre").
#: Unknown ones stay exact: a scale or a counter must not be rounded.
MOMENT_KINDS: Final[Mapping[str, Kind]] = {
    "exp_avg": "first",  # Adam, NAdam, RAdam, Adamax, Adafactor, Lion
    "exp_avg_diff": "first",  # Adan
    "exp_avg_sq": "second",  # Adam, NAdam, RAdam, Adan
    "exp_avg_sq_col": "factor",  # Adafactor (Hugging Face)
    "exp_avg_sq_row": "factor",
    "exp_inf": "second",  # Adamax
    "max_exp_avg_sq": "second",  # AMSGrad
    "momentum_buffer": "first",  # SGD, RMSprop, Muon
    "square_avg": "second",  # RMSprop, Adadelta
    "grad_avg": "centre",  # centred RMSprop
    "acc_delta": "second",  # Adadelta
    "sum": "second",  # Adagrad
}
MOMENTS: Final = frozenset(MOMENT_KINDS)
#: The largest so far of a second moment: what chance once adds to it stays.
LARGEST: Final = frozenset({"max_exp_avg_sq"})
#: Those that nothing else is called.
CERTAIN: Final = MOMENTS - {"sum"}

#: All that Adagrad holds of a parameter.
ADAGRAD: Final = frozenset({"step", "sum"})

#: Keys of a node that is an optimizer's state: torch's, and Adam's in optax.
NODES: Final = (frozenset({"state", "param_groups"}), frozenset({"count", "mu", "nu"}))


def is_node(keys: Collection[object]) -> bool:
    """Whether a dictionary of these keys is an optimizer's state.

    Example:
        >>> is_node(("state", "param_groups")), is_node(("state", "step"))
        (True, False)
    """
    return any(node.issubset(keys) for node in NODES)


def kind_name(name: str) -> str:
    """What a tensor is called by its kind: the last component of its dotted name, or one further in.

    Where an optimizer holds a list of each kind, the last component is a number or a weight's name.

    Example:
        >>> kind_name("optimizer.state.0.exp_avg"), kind_name("opt.exp_avg_sq.fc.weight"), kind_name("fc.sum")
        ('exp_avg', 'exp_avg_sq', 'sum')
    """
    *outer, last = (part.partition("~")[0] for part in name.split("."))
    if last in MOMENTS:
        return last
    return next((part for part in reversed(outer) if part in CERTAIN), last)


def place_and_name(leaf: Leaf) -> tuple[Place, str]:
    """Where a leaf lies and what it is called there, dots within its key being levels too."""
    place, _, name = str(leaf.path[-1] if leaf.path else "").rpartition(".")
    return (leaf.path[:-1], place), name


def apart(leaf: Leaf) -> tuple[Place, str]:
    """The same; a leaf under the name of a moment is called that, and lies where it would without it."""
    lies, name = place_and_name(leaf)
    if name in MOMENTS or kind_name(leaf.name) not in CERTAIN:
        return lies, name
    levels = [part for key in leaf.path for part in (key.split(".") if isinstance(key, str) else [key])]
    at = max(at for at, part in enumerate(levels) if part in CERTAIN)
    return (tuple(levels[:at] + levels[at + 1 :]), ""), str(levels[at])


def places_of(leaves: Iterable[Leaf]) -> set[Place]:
    """Places, outside of optimizers' nodes, in which an optimizer's tensors of one parameter lie.

    A sum is one only beside a count of steps and nothing else, and where another tensor has its shape: the
    sums of a normaliser lie beside a count, too.
    """
    names: dict[Place, set[str]] = {}
    sums: dict[Place, Leaf] = {}
    shapes: dict[tuple[int, ...], set[Place]] = {}
    for leaf in leaves:
        lies, name = place_and_name(leaf)
        names.setdefault(lies, set()).add(name)
        shapes.setdefault(tuple(leaf.tensor.shape), set()).add(lies)
        if name == "sum":
            sums[lies] = leaf
    adagrad = {
        lies
        for lies, leaf in sums.items()
        if names[lies] == ADAGRAD and shapes[tuple(leaf.tensor.shape)] - sums.keys()
    }
    return adagrad | {lies for lies, held in names.items() if held & CERTAIN}
