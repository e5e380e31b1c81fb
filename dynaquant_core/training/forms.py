"""What a checkpoint does not hold as an object's state has it: counters, and a scheduler's functions."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Mapping
from typing import Any

from dynaquant_core.state.tree import MAX_DEPTH
from dynaquant_core.training.kinds import is_function, is_inner

__all__ = ["plain", "with_counters", "with_functions", "without_functions"]


def plain(state: Any, depth: int = 0) -> Any:
    """Counters (`MultiStepLR` keeps one) as plain dictionaries; `with_counters` makes them counters again.

    What lies deeper than a checkpoint can hold stays as it is: the store says what is wrong with it.
    """
    if isinstance(state, Counter):
        return dict(state)
    kind = type(state)
    if depth <= MAX_DEPTH and kind in (dict, OrderedDict):
        return kind((key, plain(value, depth + 1)) for key, value in state.items())
    if depth <= MAX_DEPTH and kind in (list, tuple):
        return kind(plain(value, depth + 1) for value in state)
    return state


def with_counters(stored: Any, own: Any) -> Any:
    """The stored state with counters where the object's own state has them."""
    if isinstance(own, Counter):
        return Counter(stored)
    if isinstance(stored, dict) and isinstance(own, Mapping):
        kind = OrderedDict if isinstance(stored, OrderedDict) else dict
        return kind((key, with_counters(value, own.get(key))) for key, value in stored.items())
    sequence = type(stored)
    if sequence in (list, tuple) and isinstance(own, (list, tuple)) and len(stored) == len(own):
        return sequence(with_counters(*pair) for pair in zip(stored, own, strict=True))
    return stored


def without_functions(state: Any) -> Any:
    """A scheduler's state without functions, which are its own from when it is made (`SWALR` of torch 2.7).

    Example:
        >>> without_functions({"last_epoch": 3, "anneal_func": max, "_schedulers": [{"anneal_func": max}]})
        {'last_epoch': 3, '_schedulers': [{}]}
    """
    if type(state) is not dict:
        return state
    kept = {key: value for key, value in state.items() if not is_function(value)}
    for key, value in kept.items():
        if is_inner(key) and type(value) is list:
            kept[key] = [without_functions(one) for one in value]
    return kept


def with_functions(stored: Any, own: Any) -> Any:
    """The stored state with the functions of the scheduler's own, which are in no checkpoint."""
    if not isinstance(stored, dict) or type(own) is not dict:
        return stored
    state = {key: value for key, value in own.items() if is_function(value)} | stored
    for key, value in state.items():
        inner = own.get(key) if is_inner(key) else None
        if isinstance(value, list) and isinstance(inner, list) and len(value) == len(inner):
            state[key] = [with_functions(*pair) for pair in zip(value, inner, strict=True)]
    return state
