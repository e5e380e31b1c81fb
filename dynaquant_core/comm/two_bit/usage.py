"""Which parameters have taken part in a step, on this rank and on any: DDP drops what no rank has used.

Whether a gradient is zero does not tell: DDP puts what an unused parameter's ``.grad`` still holds into the
bucket, and throws the result away.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import final

from torch import Tensor
from torch.nn import Parameter

__all__ = ["Usage"]


@final
class Usage:
    """Notes which parameters get a gradient, from one exchange to the next; passes under ``no_sync`` count.

    Args:
        parameters: by name; hooks are put on them.

    Example:
        >>> import torch
        >>> used, unused = Parameter(torch.ones(2)), Parameter(torch.ones(2))
        >>> usage = Usage({"used": used, "unused": unused})
        >>> used.sum().backward()
        >>> usage.of(("unused", "used"))
        [False, True]
    """

    def __init__(self, parameters: Mapping[str, Parameter]) -> None:
        self._used: set[str] = set()
        for name, parameter in parameters.items():
            # Not for a gradient that `torch.autograd.grad` hands out, of which DDP sees nothing.
            parameter.register_post_accumulate_grad_hook(partial(self._note, name))  # type: ignore[no-untyped-call]

    def of(self, names: Sequence[str]) -> list[bool]:
        """Which of the parameters were used."""
        return [name in self._used for name in names]

    def clear(self) -> None:
        """A new step begins."""
        self._used.clear()

    def _note(self, name: str, _: Tensor) -> None:
        self._used.add(name)
