"""The tables of a rANS stream: what they say, and how few bytes they take.

Counts are stored as square roots, q = round(sqrt(count / 2)), at least 1 where the symbol occurs: rounding
then costs about half a bit an entry, whatever its size, and finer steps would cost more than they save.  The
number of times each context occurs is known to the decoder, which holds the context; each row's
likeliest symbol takes what the others leave.  `tables_kernels.code_rows` codes the roots adaptively against
their neighbours; on recorded training runs an entry costs 1 to 3 bits and the tables 0.3% of the stream.

Source: ours; the square-root spacing is the variance-stabilising one of Poisson counts.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dynaquant_core.coding.codec import MAX_LEVELS
from dynaquant_core.coding.rans_model_kernels import entropy, fill_roots, fill_starts, spent
from dynaquant_core.coding.tables_kernels import (
    CLASSES,
    CONTEXTS,
    DIAGONAL,
    LENGTHS,
    code_number,
    code_rows,
)
from dynaquant_core.errors import CorruptFileError

__all__ = ["Model", "entropy_bits", "fit", "read", "slot_bits"]

#: Probabilities are multiples of 1 / SCALE.
SCALE = 1 << 15
_LEVEL_BITS = 10
#: Four states pay (6 bytes) from these sizes on: by bits, or by symbols where speed is worth more.
_LANES_FROM_BITS = 16_384
_LANES_FROM_SYMBOLS = 1 << 18

Counts = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Model:
    """Frequencies of a stream's symbols.

    Args:
        levels: number of symbols; decoded symbols are below it.
        starts: uint16[rows, levels + 1], each row from 0 to 2**15.
        lanes: 1 or 4 states.
        sampled: the decoder counts the contexts in a sample only.
        slots: uint32[k], the decisions that store all this; empty after `read`.
    """

    levels: int
    starts: NDArray[np.uint16]
    lanes: int
    sampled: bool
    slots: NDArray[np.uint32]

    def data_bits(self, joint: Counts) -> float:
        """Bits that symbols with these counts, int64[rows, levels], take under this model."""
        return float(spent(np.ascontiguousarray(joint), self.starts))


def entropy_bits(joint: Counts) -> float:
    """Entropy n * H(symbol | context) in bits, of counts int64[contexts, levels] (or int64[levels]).

    Example:
        >>> import numpy as np
        >>> entropy_bits(np.array([[2, 2], [8, 0]]))
        4.0
    """
    return float(entropy(np.ascontiguousarray(np.atleast_2d(joint), np.int64)))


def slot_bits(slots: NDArray[np.uint32]) -> float:
    """Bits that recorded decisions take."""
    return float(np.sum(15.0 - np.log2(slots & np.uint32(0xFFFF))))


def _prior() -> NDArray[np.int32]:
    """What the adaptive contexts believe before they have seen anything, int32[2 * CONTEXTS].

    Fitted by eye to recorded runs: the chance that a root is at least 2**i, by how far the prediction's
    half-octave lies above or below it.
    """
    ones = np.array([4, 12, 32, 96, 160, 180, 188])
    above = np.arange(CLASSES)[:, None] - 2 * (np.arange(LENGTHS)[None] + 1)
    chance = ones[np.clip(above, -3, 3) + 3]
    chance[0, 0] = 8
    prior = np.full((CONTEXTS, 2), 32, np.int32)
    prior[: 2 * CLASSES * LENGTHS, 1] = np.tile(chance.ravel(), 2)
    prior[: 2 * CLASSES * LENGTHS, 0] = 192 - np.tile(chance.ravel(), 2)
    prior[DIAGONAL] = 160, 32
    return prior.ravel()


_PRIOR = _prior()


def _roots_of(totals: Counts) -> NDArray[np.int64]:
    """floor(16 * sqrt(totals)); exact on every machine, because IEEE 754 rounds square roots correctly."""
    roots: Counts = np.sqrt(256.0 * totals).astype(np.int64)
    return roots


def _starts(totals: Counts, roots: NDArray[np.int32], modes: NDArray[np.int64]) -> NDArray[np.uint16]:
    """Interval bounds in units of 2**-15, see `fill_starts`."""
    starts = np.empty((totals.size, roots.shape[1] + 1), np.uint16)
    fill_starts(totals, roots, modes, starts)
    return starts


def fit(joint: Counts, sample: Counts | None = None) -> Model:
    """The model of symbols with these counts, and the decisions that store it.

    Args:
        joint: int64[contexts, levels], at most `MAX_LEVELS` each way, at least one count above 0.
        sample: int64[contexts], roughly the sums of the rows; None for the sums.  Used if it is above 0
            wherever they are: it says how fine the roots of a row are, so roughly is good enough.

    Example:
        >>> import numpy as np
        >>> model = fit(np.array([[990, 10], [0, 50]]))
        >>> np.diff(model.starts.astype(int)).tolist()
        [[32506, 262], [0, 32768]]
    """
    joint, levels = np.ascontiguousarray(joint), joint.shape[1]  # kernels are compiled for one layout
    exact, modes = joint.sum(axis=1), joint.argmax(axis=1)
    sampled = sample is not None and bool(((sample > 0) == (exact > 0)).all())
    totals = sample if sample is not None and sampled else exact
    roots = np.empty(joint.shape, np.int32)
    fill_roots(joint, exact, totals, roots)
    starts = _starts(totals, roots, modes)
    bits = entropy_bits(joint)
    lanes = 4 if bits >= _LANES_FROM_BITS or int(exact.sum()) >= _LANES_FROM_SYMBOLS else 1
    occurring = int(np.count_nonzero(totals))
    capacity = 64 + occurring * (levels + 16) + 2 * LENGTHS * int(np.count_nonzero(joint))
    slots, lane, words = np.empty(capacity, np.uint32), np.zeros(3, np.uint64), np.zeros(1, np.uint16)
    code_number(2 * (lanes // 4) + sampled, 2, slots, lane, words, 0)
    code_number(levels - 1, _LEVEL_BITS, slots, lane, words, 0)
    code_rows(totals, _roots_of(totals), roots.ravel(), modes, levels, _PRIOR.copy(), slots, lane, words, 0)
    return Model(levels, starts, lanes, sampled, slots[: int(lane[1])])


def read(
    count: Callable[[bool], Counts], lane: NDArray[np.uint64], words: NDArray[np.uint16], limit: int
) -> Model:
    """Reads back what `fit` stored.

    Args:
        count: how often each context occurs, int64[contexts]; or the sample that `fit` was given.
        lane: uint64[3], state and position; moved past the tables.
        words: uint16[...], the stream.
        limit: largest number of levels that is acceptable, at most `MAX_LEVELS`.

    Raises:
        CorruptFileError: the words are not such tables.
    """
    slots = np.empty(1, np.uint32)
    flags = int(code_number(0, 2, slots, lane, words, 1))
    levels = int(code_number(0, _LEVEL_BITS, slots, lane, words, 1)) + 1
    if levels > min(limit, MAX_LEVELS):
        raise CorruptFileError(
            f"A rANS stream announces {levels} levels where its symbols have room for {limit}; "
            "load another checkpoint."
        )
    totals = count(bool(flags & 1))
    roots, modes = np.zeros((totals.size, levels), np.int32), np.zeros(totals.size, np.int64)
    if not code_rows(
        totals, _roots_of(totals), roots.ravel(), modes, levels, _PRIOR.copy(), slots, lane, words, 1
    ):
        raise CorruptFileError("A rANS stream's tables are cut short or broken; load another checkpoint.")
    return Model(levels, _starts(totals, roots, modes), 4 if flags & 2 else 1, bool(flags & 1), slots[:0])
