"""Which tensors a checkpoint has to write at all: those whose words are not the base's.

A digest of 128 bits finds that out without the base's values.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray
from torch import Tensor

from dynaquant_core.state import words_of
from dynaquant_core.threads import map_threads

__all__ = ["digests_of", "words_digest"]


def words_digest(words: NDArray[Any]) -> bytes:
    """xxh3_128 of a tensor's words: equal digests are taken for equal tensors."""
    return xxhash.xxh3_128_digest(words.view(np.uint8).data)


def digests_of(state: Mapping[str, Tensor]) -> dict[str, bytes]:
    """The digest of each tensor, in parallel.

    Example:
        >>> import torch
        >>> one, two = digests_of({"a": torch.zeros(3), "b": torch.zeros(3)}).values()
        >>> one == two, len(one)
        (True, 16)
    """
    digests = map_threads(lambda tensor: words_digest(words_of(tensor)), list(state.values()))
    return dict(zip(state, digests, strict=True))
