"""Methods that save a share of a model: their point, and how the share is chosen."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil
from typing import Any, Final, TypeVar

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from dynaquant_core.config import FrozenSettings, require
from dynaquant_core.methods.base import Hints, Space
from dynaquant_core.methods.tensorwise import TensorMethod
from dynaquant_core.methods.words import Plain, plain_of
from dynaquant_core.quantize.change import largest, moved
from dynaquant_core.state import TensorSpec, tensor_of

__all__ = ["ShareConfig", "ShareMethod", "moved_from"]

C = TypeVar("C")
H = TypeVar("H")

#: Shares, careful to bold.
SHARES: Final = (1.0, 0.5, 0.2, 0.1, 0.05)


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareConfig(FrozenSettings):
    """One point of the methods ``scar`` and ``topn``.

    Args:
        share: of the model that a checkpoint saves, above 0; 1 keeps every tensor bit for bit.

    Raises:
        ConfigError: the value is of the wrong type or out of range.

    Example:
        >>> ShareConfig(share=1).exact, ShareConfig(share=0.05).as_dict()
        (True, {'share': 0.05})
    """

    share: float = 0.5

    def __post_init__(self) -> None:
        good = (
            isinstance(self.share, (int, float)) and not isinstance(self.share, bool) and 0 < self.share <= 1
        )
        require(good, f"ShareConfig: share must be a number above 0 and at most 1, got {self.share!r}.")
        object.__setattr__(self, "share", float(self.share))

    @property
    def exact(self) -> bool:
        """Whether every tensor is kept as it is."""
        return self.share == 1.0


class ShareMethod(TensorMethod[ShareConfig, C, H]):
    """A method that saves, of all the model together, the share that a score calls for.

    A key is whole, bit for bit; so is what a reader holds, as it was last saved.
    """

    point = ShareConfig

    @abstractmethod
    def scores(self, tensor: Tensor, base: H) -> NDArray[Any]:
        """What asks to be saved, a number for each piece of a tensor; 0: nothing changed."""

    @abstractmethod
    def part(self, tensor: Tensor, base: H, marks: NDArray[np.bool_]) -> C:
        """The marked pieces of a tensor, about to be written."""

    def space(self, *, gradients: bool) -> Space:  # noqa: ARG002
        """All, a half, a fifth, a tenth, a twentieth; the first of them is the way out too."""
        return Space(
            build=ShareConfig,
            axes={"share": SHARES},
            variants={},
            refine={},
            beyond=(ShareConfig(share=1.0),),
            default=ShareConfig(),
        )

    def plan(
        self,
        state: Mapping[str, Tensor],
        base: Mapping[str, H],
        config: ShareConfig,
        hints: Hints,  # noqa: ARG002
    ) -> dict[str, NDArray[np.bool_]]:
        """The pieces to save, by tensor."""
        names = [name for name in state if name in base]
        scores = [self.scores(state[name], base[name]) for name in names]
        count = ceil(config.share * sum(part.size for part in scores))
        return dict(zip(names, largest(scores, count), strict=True))

    def code(
        self,
        name: str,
        tensor: Tensor,
        base: H | None,
        config: ShareConfig,  # noqa: ARG002
        plan: Mapping[str, NDArray[np.bool_]],
    ) -> C | Plain:
        """The planned pieces; the tensor whole where there is no base."""
        return plain_of(tensor, bf16=False) if base is None else self.part(tensor, base, plan[name])


def moved_from(live: Tensor, words: NDArray[Any]) -> NDArray[np.float32]:
    """How far a tensor is from the words that were saved of it, float32[n]; see `quantize.change.moved`."""
    return moved(live, tensor_of(words, TensorSpec.of(live)))
