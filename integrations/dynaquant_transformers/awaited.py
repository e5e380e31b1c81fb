"""Who wants to find a checkpoint as soon as it was saved: a callback, or a subclass after the Trainer."""

from __future__ import annotations

from dis import get_instructions
from typing import Any, Final

from accelerate.utils import gather_object
from transformers import Trainer, TrainerCallback

from dynaquant_core.plugins.agreement import ranks

__all__ = ["SAVE", "goes_on", "on_any_rank", "reads_saves"]

#: The method whose end subclasses wait for.
SAVE: Final = "_save_checkpoint"


def reads_saves(trainer: Trainer) -> bool:
    """Whether a callback listens to ``on_save``: then the checkpoint has to be there when it hears of it."""
    callbacks = trainer.callback_handler.callbacks
    own = (getattr(one.on_save, "__func__", one.on_save) for one in callbacks)
    return any(method is not TrainerCallback.on_save for method in own)


def goes_on(trainer: Trainer) -> bool:
    """Whether a subclass goes on in its ``_save_checkpoint`` after the Trainer's own: it may copy, or upload.

    One whose last call that is does not, as most of TRL's.
    """
    if SAVE in vars(trainer):  # put there by a script
        return True
    classes = type(trainer).__mro__
    own = (vars(one)[SAVE] for one in classes[: classes.index(Trainer)] if SAVE in vars(one))
    return any(map(_calls_after, own))


def on_any_rank(*wanted: bool) -> list[bool]:
    """What is wanted on one rank at least; all ranks together, as only one may have such a callback."""
    everywhere = gather_object([wanted]) if ranks() > 1 else [wanted]
    return [any(each) for each in zip(*everywhere, strict=True)]


def _calls_after(method: Any) -> bool:
    """Whether a method may call something after it has called the one of its name above it."""
    code = getattr(method, "__code__", None)
    if code is None or hasattr(method, "__wrapped__") or SAVE not in code.co_names:
        return True  # through a wrapper, or a method of another name: what that does is not to be seen
    words = list(get_instructions(code))
    first = next(place for place, word in enumerate(words) if word.argval == SAVE)
    rest = [word.opname for word in words[first:]]
    return sum(name.startswith("CALL") for name in rest) > 1 or any("JUMP" in name for name in rest)
