"""What a DynaQuant tree cannot hold, split off and kept as torch.save writes it.

A framework's state holds objects of arbitrary classes.  They go into one small file beside the checkpoint and
come back in their places.  That file is the framework's own kind of file, with the framework's own risk:
reading it may run code unless ``weights_only`` says otherwise.
"""

from __future__ import annotations

import copy
import io
import warnings
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from dynaquant_core.errors import CorruptFileError, StorageError, UnsupportedStateError
from dynaquant_core.state.leaves import SHARDED, as_leaf_tensor, dotted
from dynaquant_core.state.scalars import plain_array_dtype, scalar_node
from dynaquant_core.state.tree import MAX_DEPTH

__all__ = ["Rest", "read_rest", "split"]

FORMAT = 1

#: Containers of plain values need no look at each of their thousands of entries.
PLAIN = frozenset({int, float, bool, str, bytes, type(None)})

#: Classes that an error names.
NAMED = 5

Place = tuple[str | int, ...]


@dataclass(slots=True)
class Rest:
    """What was split off a state.

    Args:
        objects: place -> the object that stands there.
        shells: place -> an empty dictionary of a class or with attributes of its own; its entries stayed in
            the tree.
    """

    objects: dict[Place, Any] = field(default_factory=dict)
    shells: dict[Place, Any] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.objects or self.shells)

    def as_bytes(self) -> bytes:
        """The file's content.

        Raises:
            UnsupportedStateError: an object cannot be pickled; names its path.
        """
        data = {"format": FORMAT, "objects": list(self.objects.items()), "shells": list(self.shells.items())}
        buffer = io.BytesIO()
        try:
            torch.save(data, buffer)
        except Exception as error:  # whatever an object's own pickling raises
            raise self._refusal(error) from error
        return buffer.getvalue()

    def into(self, tree: Any) -> Any:
        """The state with everything back in its place; containers of ``tree`` may be changed."""
        for place, shell in sorted(self.shells.items(), key=lambda item: -len(item[0])):
            tree = _changed(tree, place, lambda plain, shell=shell: _filled(shell, plain))
        for place, value in self.objects.items():
            tree = _changed(tree, place, lambda _, value=value: value)
        return tree

    def _refusal(self, error: Exception) -> UnsupportedStateError:
        for place, value in (*self.objects.items(), *self.shells.items()):
            if not _is_picklable(value):
                kind = type(value)
                return UnsupportedStateError(
                    f"The state holds an object of type {kind.__module__}.{kind.__qualname__} at "
                    f"{dotted(place)!r} that cannot be pickled ({error}); take it out of the state."
                )
        return UnsupportedStateError(f"The state holds objects that cannot be pickled together: {error}.")


def split(state: Any) -> tuple[Any, Rest]:
    """Takes out of a state what a checkpoint cannot hold.

    Tensors are not copied, and ``state`` is not changed.

    Returns:
        The state with None, or a plain dictionary, where something was taken out; and what it was.

    Raises:
        UnsupportedStateError: a tensor holds one rank's share only, or a container holds itself.

    Example:
        >>> split({"step": 3, "when": {1, 2}})
        ({'step': 3, 'when': None}, Rest(objects={('when',): {1, 2}}, shells={}))
    """
    rest = Rest()
    return _Splitter(rest).node(state, ()), rest


def read_rest(path: Path, *, weights_only: bool = True) -> Rest:
    """Reads the file again.

    Args:
        path: the file.
        weights_only: refuse objects whose reading could run code.

    Raises:
        UnsupportedStateError: ``weights_only`` refused an object; names its class.
        CorruptFileError, StorageError: the file is damaged or cannot be read.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # remarks about pickles are not ours to pass on
            data = torch.load(path, map_location="cpu", weights_only=weights_only)
        return Rest(dict(data["objects"]), dict(data["shells"]))
    except OSError as error:
        raise StorageError(f"{str(path)!r} cannot be read: {error.strerror or error}.") from error
    except Exception as error:
        classes = _refused(path) if weights_only else []
        if classes:
            listed = ", ".join(classes[:NAMED])
            raise UnsupportedStateError(
                f"{str(path)!r} holds objects of {listed}, and reading them may run code; "
                "load with weights_only=False if you trust where the checkpoint comes from."
            ) from error
        reason = str(error).strip().split("\n", maxsplit=1)[0].rstrip(".") or type(error).__name__
        raise CorruptFileError(f"{str(path)!r} is damaged ({reason}); take another checkpoint.") from error


def _refused(path: Path) -> list[str]:
    """Classes and functions in the file that ``weights_only`` does not allow; nothing is run."""
    try:
        return sorted(torch.serialization.get_unsafe_globals_in_checkpoint(path))
    except Exception:  # noqa: BLE001 - a damaged file ends in anything, and is told as damaged
        return []


class _Splitter:
    """Walks a state and rebuilds its containers."""

    def __init__(self, rest: Rest) -> None:
        self._rest = rest

    def node(self, obj: Any, place: Place) -> Any:
        if len(place) > MAX_DEPTH:
            return obj  # `flatten` refuses it, and says where
        kind = type(obj)
        if kind in PLAIN:
            return obj
        if isinstance(obj, dict):
            return self._mapping(obj, place)
        if kind is list or kind is tuple:
            return self._sequence(obj, place)
        return obj if _is_held(obj, place) else self._off(obj, place)

    def _mapping(self, obj: dict[Any, Any], place: Place) -> Any:
        kind = type(obj)
        good = all(type(key) in (str, int) for key in obj)
        if not good or (kind not in (dict, OrderedDict) and not any(_tensors(obj))):
            return self._off(obj, place)
        plain = {key: self.node(value, (*place, key)) for key, value in obj.items()}
        if kind is OrderedDict:
            if vars(obj):  # a state dict says there which versions its modules were saved by
                self._rest.shells[place] = _emptied(obj)
            return OrderedDict(plain)
        if kind is not dict:
            self._rest.shells[place] = _emptied(obj)
        return plain

    def _sequence(self, obj: Any, place: Place) -> Any:
        if PLAIN.issuperset(map(type, obj)):
            return obj
        return type(obj)(self.node(item, (*place, number)) for number, item in enumerate(obj))

    def _off(self, obj: Any, place: Place) -> None:
        self._rest.objects[place] = obj


def _is_picklable(value: Any) -> bool:
    try:
        torch.save(value, io.BytesIO())
    except Exception:  # noqa: BLE001 - whatever an object's own pickling raises
        return False
    return True


def _is_held(obj: Any, place: Place) -> bool:
    """Whether a checkpoint holds the object, which is no container of its own."""
    if isinstance(obj, torch.Tensor):
        if type(obj).__name__ in SHARDED or obj.is_meta:
            as_leaf_tensor(obj, place)  # raises
        return _is_good(lambda: as_leaf_tensor(obj, place))
    if isinstance(obj, np.ndarray):
        return type(obj) is np.ndarray and plain_array_dtype(obj.dtype) is not None
    return _is_good(lambda: scalar_node(obj, ""))


def _is_good(attempt: Any) -> bool:
    try:
        attempt()
    except UnsupportedStateError:
        return False
    return True


def _tensors(obj: Any, depth: int = 0) -> Iterator[bool]:
    """True for each tensor inside, so that dictionaries of a class of their own keep theirs in the tree."""
    if isinstance(obj, torch.Tensor):
        yield True
    elif depth < MAX_DEPTH and isinstance(obj, (dict, list, tuple)):
        for value in obj.values() if isinstance(obj, dict) else obj:
            yield from _tensors(value, depth + 1)


def _emptied(obj: dict[Any, Any]) -> Any:
    """A copy of a dictionary without its entries, its class and attributes kept."""
    shell = copy.copy(obj)  # its own method `copy` may give a plain dictionary
    shell.clear()
    return shell


def _filled(shell: Any, plain: Any) -> Any:
    shell.update(plain)
    return shell


def _changed(tree: Any, place: Place, change: Any) -> Any:
    """``tree`` with what stands at ``place`` changed; tuples on the way are made anew."""
    if not place:
        return change(tree)
    value = _changed(tree[place[0]], place[1:], change)
    if isinstance(tree, tuple):
        return tuple(value if number == place[0] else item for number, item in enumerate(tree))
    tree[place[0]] = value
    return tree
