"""Random generators that loaders, data sets and collators hold: a look at the data must not move them on."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from copy import copy, deepcopy
from random import Random
from types import CellType
from typing import Any

import numpy as np
import torch

__all__ = ["GENERATORS", "apart", "kept"]

#: Python's and NumPy's; torch's cannot be copied as these can.
GENERATORS = (Random, np.random.Generator, np.random.RandomState)


@contextmanager
def kept(owners: Iterable[Any]) -> Iterator[None]:
    """Puts every generator that is an attribute of an owner back to where it stood.

    Args:
        owners: any objects; of a bound method its own object's attributes count, of a function what it
            encloses.

    Example:
        >>> class Masks:
        ...     drawn = None
        >>> masks = Masks()
        >>> masks.drawn = Random(0)
        >>> with kept([masks]):
        ...     first = masks.drawn.random()
        >>> masks.drawn.random() == first
        True
    """
    found = {id(one): one for owner in owners for one in _held(owner)}
    states = [(one, _state_of(one)) for one in found.values()]
    try:
        yield
    finally:
        for generator, state in states:
            _put_back(generator, state)


def apart(owner: Any) -> Any:
    """A shallow copy of an object, with generators of its own that stand where the object's do.

    A generator that the object makes when it is first used is then made in the copy.  Functions, and what
    cannot be copied, are returned as they are.

    Example:
        >>> class Masks:
        ...     drawn = None
        >>> masks = Masks()
        >>> apart(masks).drawn = Random(0)
        >>> masks.drawn is None
        True
    """
    if not hasattr(owner, "__dict__") or callable(getattr(owner, "__get__", None)):
        return owner
    try:
        fresh = copy(owner)
        for name, value in vars(fresh).items():
            if isinstance(value, GENERATORS):
                vars(fresh)[name] = deepcopy(value)
            elif isinstance(value, torch.Generator):
                vars(fresh)[name] = torch.Generator(value.device).set_state(value.get_state())
    except Exception:  # noqa: BLE001 - an object of the user's that objects to being copied
        return owner
    return fresh


def _held(owner: Any) -> Iterator[Any]:
    inner = getattr(owner, "__self__", owner)
    closed: tuple[CellType, ...] = getattr(owner, "__closure__", None) or ()
    for value in [*getattr(inner, "__dict__", {}).values(), *map(_content, closed)]:
        if isinstance(value, (torch.Generator, *GENERATORS)):
            yield value


def _content(cell: CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # it is empty
        return None


def _state_of(generator: Any) -> Any:
    if isinstance(generator, Random):
        return generator.getstate()
    if isinstance(generator, np.random.Generator):
        return deepcopy(generator.bit_generator.state)
    return generator.get_state()


def _put_back(generator: Any, state: Any) -> None:
    if isinstance(generator, Random):
        generator.setstate(state)
    elif isinstance(generator, np.random.Generator):
        generator.bit_generator.state = state
    else:
        generator.set_state(state)
