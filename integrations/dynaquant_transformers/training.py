"""What ``train`` does where there is a `DynaQuantCallback`, and which methods have stand-ins meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any, Final

from transformers import Trainer

from dynaquant_transformers import loading, saving
from dynaquant_transformers.awaited import SAVE
from dynaquant_transformers.callback import callback_of
from dynaquant_transformers.evaluation import shadowed
from dynaquant_transformers.hiding import hides

__all__ = ["WITHIN", "train"]

Method = Callable[..., Any]

#: Method of the Trainer that ``train`` calls -> what stands in for it.
WITHIN: Final[Mapping[str, Method]] = {
    SAVE: saving.save_checkpoint,
    "_save": saving.save_files,
    "_save_optimizer_and_scheduler": saving.save_optimizer_and_scheduler,
    "_load_from_checkpoint": loading.load_from_checkpoint,
    "_load_optimizer_and_scheduler": loading.load_optimizer_and_scheduler,
    "_load_best_model": loading.load_best_model,
}


def train(
    trainer: Trainer, native: Method, resume_from_checkpoint: Any = None, *args: Any, **kwargs: Any
) -> Any:
    """``train``: everything that is saved in it goes through one session.

    ``_save_checkpoint`` is taken from the trainer, not from its class: what a subclass puts into the folder
    before and after the Trainer's own part belongs to the checkpoint as well, which is there after that part.
    """
    callback = callback_of(trainer)
    with _uncovered(trainer):
        if callback is None:
            return native(resume_from_checkpoint, *args, **kwargs)
        with callback.training(trainer) as session:
            save = partial(session.save, trainer._save_checkpoint)
            with shadowed(trainer, "_save_checkpoint", save):
                return native(session.find(resume_from_checkpoint), *args, **kwargs)


@contextmanager
def _uncovered(trainer: Trainer) -> Iterator[None]:
    """Stand-ins in front of a subclass's own methods that never come to the Trainer's (`hides`).

    None in front of ``_save_checkpoint``: the session sees whether it has come there.
    """
    with ExitStack() as stack:
        for name, stand_in in WITHIN.items():
            if name != SAVE and hides(type(trainer), name):
                own = getattr(trainer, name)
                stack.enter_context(shadowed(trainer, name, partial(stand_in, trainer, own)))
        yield
