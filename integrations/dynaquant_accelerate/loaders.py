"""Loaders that ``evaluate`` reads, or begins to read, in the midst of training."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

__all__ = ["as_before"]

#: What a prepared loader keeps of its passes: the order of the next, and whether gradients are synchronised.
_KEPT: Final = ("end_of_dataloader", "remainder", "iteration")


@contextmanager
def as_before(accelerator: Any) -> Iterator[None]:
    """After the context Accelerate is in the same pass of the same loader as before it.

    A prepared loader that is not read to its end stays the one that Accelerate asks whether an epoch is over,
    and the gradients that are left of the training loader's would never make a step.

    Args:
        accelerator: whose loaders are read.
    """
    state = accelerator.gradient_state
    active = state.dataloader_references
    loaders = [loader for loader in (*active, *accelerator._dataloaders) if loader is not None]
    before = [(loader, {name: getattr(loader, name, None) for name in _KEPT}) for loader in loaders]
    try:
        yield
    finally:
        state.dataloader_references = active
        for loader, values in before:
            for name, value in values.items():
                if value is not None:
                    setattr(loader, name, value)
