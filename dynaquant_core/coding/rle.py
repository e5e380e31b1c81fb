"""Run lengths whose sign tells a value from a run (paper sec. 6).

A value v is written as -v, which is at most 0; a run of two or more of it is followed by its length, which
is at least 2; so no flag is needed.  Runs above `RUN_CAP` split into several.

Example:
    >>> import numpy as np
    >>> from dynaquant_core.coding.rle import tokens
    >>> tokens(np.uint8([0, 0, 0, 3, 1, 1])).tolist()
    [0, 3, -3, -1, 2]
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dynaquant_core.coding.codec import Array
from dynaquant_core.coding.rle_kernels import expect, tokenize

__all__ = ["RUN_CAP", "expected_histogram", "histogram", "tokens"]

#: Longest run of one token: alphabets of values and runs together stay below 2048.
RUN_CAP = 1023


def tokens(values: Array) -> NDArray[np.int16]:
    """The tokens of uint8 or uint16[n], at most n of them.

    Source: paper sec. 6 (order and cap are ours).
    """
    found = np.empty(values.size, np.int16)
    return found[: tokenize(values, RUN_CAP, found)]


def histogram(found: NDArray[np.int16], levels: int) -> NDArray[np.int64]:
    """How often each token occurs: int64[levels + RUN_CAP], token t at index t + levels - 1."""
    return np.bincount(found.astype(np.int64) + (levels - 1), minlength=levels + RUN_CAP)


def expected_histogram(counts: NDArray[np.int64]) -> NDArray[np.float64]:
    """The histogram to expect of a memoryless sequence with these counts, int64[levels].

    A run of a value with probability p begins n * p * (1 - p) times and is r long with probability
    (1 - p) * p**(r - 1); what is longer than the cap begins anew.

    Example:
        >>> import numpy as np
        >>> expected_histogram(np.array([50, 50]))[:5].round(1).tolist()
        [25.2, 25.2, 0.0, 12.6, 6.3]
    """
    expected = np.zeros(counts.size + RUN_CAP)
    if counts.any():
        expect(np.ascontiguousarray(counts), RUN_CAP, expected)
    return expected
