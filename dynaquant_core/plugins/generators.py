"""Random generators that loaders, data sets and collators hold: a look at the data must not move them on."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from copy import copy, deepcopy
from functools import partial
from itertools import chain
from random import Random
from types import CellType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
import torch

from dynaquant_core.training.rng import put_rng_back, rng_state

__all__ = ["GENERATORS", "apart", "kept", "put_rng_back", "rng_state"]  # the last two are the global streams

#: Python's and NumPy's; torch's cannot be copied as these can.
GENERATORS = (Random, np.random.Generator, np.random.RandomState)

#: References followed from an owner: loader, data set, inner data set, transform, its list, one, generator.
DEEPEST = 7
#: Longer lists and mappings hold data, and are not looked through.
LONGEST = 64
#: No deeper once so many objects have been looked at: a closure may reach everything there is.
MOST = 20_000

#: Holds no generator, or is nobody's own.
LEAVES = (str, bytes, int, float, complex, type(None), torch.Tensor, np.ndarray, ModuleType, CodeType, type)
#: Methods that draw where an object is a collator, a transform, a data set, a loader or a module.
DRAWING = ("__call__", "__getitem__", "__iter__", "forward")


@contextmanager
def kept(owners: Iterable[Any]) -> Iterator[None]:
    """Puts every generator that an owner can reach back to where it stood.

    Reached is what lies in attributes, short containers, closures, default and bound arguments, and, of
    functions and of methods that draw, in the global variables that they name.  An attribute in which a
    generator is made inside the context gets back what it held before.

    Args:
        owners: any objects or functions.

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
    reached = _reached(owners)
    states = [(one, _state_of(one)) for one in reached if _is_generator(one)]
    attributes = [(own, dict(own)) for own in map(_attributes, reached)]
    try:
        yield
    finally:
        for own, before in attributes:
            _forget_new(own, before)
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


def _reached(owners: Iterable[Any]) -> list[Any]:
    """The owners and what they hold, nearest first; each once."""
    seen: dict[int, Any] = {}
    layer = list(owners)
    for _ in range(DEEPEST + 1):
        fresh = {id(one): one for one in layer if id(one) not in seen and not isinstance(one, LEAVES)}
        seen |= fresh
        if len(seen) > MOST:
            break
        layer = list(chain.from_iterable(map(_inside, fresh.values())))
    return list(seen.values())


def _inside(one: Any) -> Iterator[Any]:
    """What an object holds or draws by."""
    if _is_generator(one):
        return
    yield from _attributes(one).values()
    if isinstance(one, (dict, list, tuple, set, frozenset, deque)):
        if len(one) <= LONGEST:
            yield from list(one.values() if isinstance(one, dict) else one)
    elif isinstance(one, partial):
        yield from (one.func, one.args, one.keywords)
    elif isinstance(one, MethodType):
        yield from (one.__self__, one.__func__)
    elif isinstance(one, FunctionType):
        yield from (one.__defaults__, one.__kwdefaults__)
        yield from map(_content, one.__closure__ or ())
        yield from _globals(one)
    else:
        methods = (getattr(type(one), name, None) for name in DRAWING)
        yield from (method for method in methods if isinstance(method, FunctionType))


def _globals(function: FunctionType) -> Iterator[Any]:
    """What a function names of its module's variables; functions of other modules have others to draw."""
    for name in _named(function.__code__):
        value = function.__globals__.get(name)
        if not isinstance(value, FunctionType) or value.__globals__ is function.__globals__:
            yield value


def _named(code: CodeType) -> set[str]:
    inner = (_named(part) for part in code.co_consts if isinstance(part, CodeType))
    return set(code.co_names).union(*inner)


def _attributes(one: Any) -> dict[str, Any]:
    try:
        own = one.__dict__
    except Exception:  # noqa: BLE001 - it has none, or is a proxy of nothing
        return {}
    return own if isinstance(own, dict) else {}


def _forget_new(own: dict[str, Any], before: dict[str, Any]) -> None:
    for name in [name for name, value in own.items() if _is_generator(value)]:
        if name not in before:
            del own[name]
        elif own[name] is not before[name]:
            own[name] = before[name]


def _is_generator(one: Any) -> bool:
    return isinstance(one, (torch.Generator, *GENERATORS))


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
