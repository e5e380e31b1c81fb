"""Whether a subclass's own method of a Trainer's name ever comes to the Trainer's."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from types import CodeType, FunctionType
from typing import Any

from transformers import Trainer

__all__ = ["hides"]


def hides(trainer: type[Trainer], name: str) -> bool:
    """Whether a subclass has a method of its own that does not go on to the Trainer's.

    One that does names it, as in ``super()._save(...)``, or calls a helper that does, or is a decorator's
    around one that does; then the stand-in is met there, and what the subclass does beside stays.

    Example:
        >>> class Own(Trainer):
        ...     def _save(self, output_dir=None, state_dict=None):
        ...         self.model.save_pretrained(output_dir)
        ...     def _load_best_model(self):
        ...         super()._load_best_model()
        >>> hides(Own, "_save"), hides(Own, "_load_best_model"), hides(Own, "_load_from_checkpoint")
        (True, False, False)
    """
    for base in trainer.__mro__:
        if base is Trainer:
            return False
        if name in vars(base) and not _comes_to(name, vars(base)[name], trainer):
            return True
    return False


def _comes_to(name: str, method: Any, trainer: type[Trainer]) -> bool:
    """Whether a method may come to the one of its name above it; one that has no code to look at may.

    Looked at is what it names, itself or in a function that it names: of its module, of its class, or one
    that a decorator holds.
    """
    own = [vars(base) for base in trainer.__mro__ if base not in Trainer.__mro__]
    waiting, seen = [method], set()
    while waiting:
        function = waiting.pop()
        function = getattr(function, "__func__", function)  # of a static method, or a class's
        if not isinstance(function, FunctionType):
            if function is method:
                return True
        elif function not in seen:
            seen.add(function)
            words = set(_words(function.__code__))
            if name in words:
                return True
            waiting += [room[word] for room in (*own, function.__globals__) for word in words & room.keys()]
            waiting += _held(function)
    return False


def _words(code: CodeType) -> Iterator[str]:
    """What a function's code names, also in a text (``getattr``) or in a function inside of it."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, str):
            yield constant
        elif isinstance(constant, CodeType):
            yield from _words(constant)


def _held(function: FunctionType) -> Iterator[Any]:
    """What a function has of the one in which it was made."""
    for cell in function.__closure__ or ():
        with suppress(ValueError):  # nothing is in it yet
            yield cell.cell_contents
