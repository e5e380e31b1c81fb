"""The point of methods that save a share of a model, and what they hold: the words last saved."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from dynaquant_core.config import known_keys, require
from dynaquant_core.methods.base import Space
from dynaquant_core.quantize.change import moved
from dynaquant_core.state import TensorSpec, tensor_of

__all__ = ["ShareConfig", "moved_from", "share_space"]

#: Shares, careful to bold.
SHARES: Final = (1.0, 0.5, 0.2, 0.1, 0.05)


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareConfig:
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

    def as_dict(self) -> dict[str, Any]:
        """The point as JSON-ready data; ``ShareConfig.from_dict`` takes it back."""
        return asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> ShareConfig:
        """Rebuilds a point from `as_dict`; raises ConfigError on unknown keys or bad values."""
        return cls(**known_keys(cls, data))


def share_space() -> Space:
    """All, a half, a fifth, a tenth, a twentieth; the first of them is the way out too."""
    return Space(
        build=ShareConfig,
        axes={"share": SHARES},
        variants={},
        refine={},
        beyond=(ShareConfig(share=1.0),),
        default=ShareConfig(),
    )


def moved_from(live: Tensor, words: NDArray[Any]) -> NDArray[np.float32]:
    """How far a tensor is from the words that were saved of it, float32[n]; see `quantize.change.moved`."""
    return moved(live, tensor_of(words, TensorSpec.of(live)))
