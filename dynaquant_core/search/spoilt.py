"""Candidates that are spoilt on purpose, to learn whether evaluate depends on what is stored (ours).

A spoilt model knows nothing, so they also tell what that comes to (`search.learnt`).

An evaluate that measures something else, such as an average that is kept exact, calls the coarsest candidate
perfect.  Coarse metrics do so too (an accuracy over few examples), but not of weights in a wrong order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from dynaquant_core.methods.base import Draft, Reference, Stream

__all__ = ["SpoiltConfig", "SpoiltDraft", "is_spoilt", "spoilable", "spoilt"]

#: The only key of a spoilt candidate's config as data.
KEY = "spoilt candidate"


@dataclass(frozen=True, slots=True)
class SpoiltConfig:
    """The config of a spoilt candidate; as data it reaches whoever measures, and `spoilable` takes it there.

    Args:
        of: config of the candidate that is spoilt.
    """

    of: Any

    def as_dict(self) -> dict[str, Any]:
        """JSON-ready where the method's config is."""
        as_dict = getattr(self.of, "as_dict", None)
        return {KEY: as_dict() if as_dict else self.of}


class SpoiltDraft:
    """A draft whose decoded tensors are spoilt; it is measured and never stored.

    Args:
        of: the draft that is spoilt.
    """

    def __init__(self, of: Draft) -> None:
        self.config = of.config
        self.is_key = of.is_key
        self._of = of

    @property
    def decoded(self) -> Iterator[tuple[str, Tensor]]:
        """The tensors of the draft, spoilt, one at a time."""
        return ((name, spoilt(tensor)) for name, tensor in self._of.decoded)

    @property
    def size(self) -> int:
        """Bytes of the draft."""
        return self._of.size

    def detach(self) -> None:
        """Nothing: it does not outlive its measurement."""

    def encode(self) -> tuple[Iterable[Stream], Reference]:
        """Refused."""
        raise TypeError("a spoilt candidate is not for storing")


def spoilt(tensor: Tensor) -> Tensor:
    """The values of a floating tensor in the opposite order, a thirty-second of their size.

    So small, a model says next to nothing; in another order, it says nothing where only directions count.
    They stay numbers: zeros, or what is no number, can end in errors of a device that no process recovers
    from (a sampler's, an index's).

    Example:
        >>> spoilt(torch.tensor([[32.0, 64.0], [96.0, 128.0]])).tolist()
        [[4.0, 3.0], [2.0, 1.0]]
    """
    with torch.no_grad():
        return tensor.flatten().flip(0).mul_(1 / 32).reshape(tensor.shape)


def is_spoilt(config: Any) -> bool:
    """Whether a config, an object or its data, is a spoilt candidate's."""
    return isinstance(config, SpoiltConfig) or (isinstance(config, Mapping) and set(config) == {KEY})


def spoilable(make: Callable[[Any], Draft]) -> Callable[[Any], Draft]:
    """Makes drafts as ``make`` does, and spoilt ones of a spoilt candidate's config, an object or its data.

    Example:
        >>> class Wide:
        ...     def __init__(self, config): self.config, self.is_key = config, True
        >>> draft = spoilable(Wide)({"spoilt candidate": {"bins": 4}})
        >>> type(draft).__name__, draft.config
        ('SpoiltDraft', {'bins': 4})
    """

    def made(config: Any) -> Draft:
        if isinstance(config, SpoiltConfig):
            return SpoiltDraft(make(config.of))
        if isinstance(config, Mapping) and set(config) == {KEY}:
            return SpoiltDraft(make(config[KEY]))
        return make(config)

    return made
