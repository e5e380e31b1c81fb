"""SCAR: each checkpoint saves one set of partitions, those that changed most or those whose turn it is."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final, Literal, get_args

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from dynaquant_core.coding import encode_smallest
from dynaquant_core.config import require_choice
from dynaquant_core.methods.base import Stream, StreamSource
from dynaquant_core.methods.share import ShareMethod, moved_from
from dynaquant_core.methods.streams import decode_stream
from dynaquant_core.methods.tensorwise import expect_base
from dynaquant_core.methods.words import CODECS
from dynaquant_core.quantize.change import row_count, row_norms
from dynaquant_core.state import TensorSpec, copied, words_of

__all__ = ["ROW", "Scar"]

#: Weights of a partition.  The smallest tensor that is taken is one, and the map of what was saved costs no
#: more than 1/256 bit a weight.
ROW: Final = 256

Order = Literal["priority", "turn"]
Words = NDArray[Any]
Mask = NDArray[np.bool_]


@dataclass(frozen=True, slots=True, eq=False)
class Saved:
    """What a reader holds of a tensor.

    Args:
        words: every partition as it was last saved, unsigned[n].
        ages: checkpoints since each partition was, uint32[rows].
    """

    words: Words
    ages: NDArray[np.uint32]

    def after(self, rows: Mask, words: Words) -> Saved:
        """What is held once the marked partitions were saved again."""
        now = self.words.copy()
        now[_elements(rows, now.size)] = words
        return Saved(now, np.where(rows, 0, self.ages + 1).astype(np.uint32))


@dataclass(frozen=True, slots=True, eq=False)
class Part:
    """Partitions that wait to be written.

    Args:
        rows: which, bool[rows].
        words: their weights, one after another.
        base: what is held of the tensor.
    """

    rows: Mask
    words: Words
    base: Saved


class Scar(ShareMethod[Part, Saved]):
    """The method ``"scar"``: SCAR (Qiao et al., as arXiv 2009.13003 compares with it).

    Card:
        What it does: cuts each tensor into partitions of 256 consecutive weights; a checkpoint saves a share
        of all partitions of the model, bit for bit, and a reader holds the rest as it was last saved.
        What it costs: a key whole; then the share, coded losslessly against what is held.
        What is lost: nothing of what is saved; all movement of what is not, until it is its turn.
        Departures: partitions are of one size instead of rows of each layer; those that did not change are
        not chosen by priority.

    Args:
        order: ``"priority"`` takes the partitions whose change since they were saved has the largest norm;
            ``"turn"`` those that were saved longest ago.

    Raises:
        ConfigError: there is no such order.

    Example:
        >>> import torch
        >>> from dynaquant_core.methods.base import Hints
        >>> from dynaquant_core.methods.share import ShareConfig
        >>> method, weight = Scar(), torch.zeros(4, 256)
        >>> _, held = method.draft({"w": weight}, None, ShareConfig(), Hints()).encode()
        >>> weight[2], weight[3, 0] = 1, 0.5
        >>> draft = method.draft({"w": weight}, held, ShareConfig(share=0.2), Hints())
        >>> dict(draft.decoded)["w"].sum(1)
        tensor([  0.,   0., 256.,   0.])
    """

    name = "scar"

    def __init__(self, *, order: Order = "priority") -> None:
        require_choice("method scar", "order", order, get_args(Order))
        self.order = order

    def options(self) -> dict[str, Any]:
        """The order; a reader does not ask."""
        return {"order": self.order}

    def scores(self, tensor: Tensor, base: Saved) -> NDArray[Any]:
        """Of each partition: its change's norm, or the checkpoints that it has waited."""
        if self.order == "turn":
            return base.ages + 1.0
        return row_norms(moved_from(tensor, base.words), ROW)

    def part(self, tensor: Tensor, base: Saved, marks: Mask) -> Part:
        """The marked partitions."""
        words = words_of(tensor)
        return Part(marks, words[_elements(marks, words.size)], base)

    def hold(self, coded: Part) -> Saved:
        """The base with the partitions in it."""
        return coded.base.after(coded.rows, coded.words)

    def adopt(self, tensor: Tensor) -> Saved:
        """Every partition was saved just now."""
        words = words_of(tensor)
        return Saved(words, np.zeros(row_count(words.size, ROW), np.uint32))

    def value(self, held: Saved, spec: TensorSpec) -> Tensor:
        """The words."""
        return copied(held.words, spec)

    def write(self, name: str, coded: Part) -> Iterator[Stream]:
        """Which partitions, and their words."""
        yield Stream(name, "rows", *encode_smallest(np.packbits(coded.rows)))
        if coded.words.size:
            known = coded.base.words[_elements(coded.rows, coded.base.words.size)]
            yield Stream(name, "words", *encode_smallest(coded.words, known, CODECS))

    def read(self, source: StreamSource, name: str, spec: TensorSpec, base: Saved | None) -> Saved:
        """The base with the partitions in it."""
        held = expect_base(base, name)
        count = row_count(spec.numel, ROW)
        packed = np.empty(row_count(count, 8), np.uint8)
        decode_stream(source, name, "rows", packed)
        rows = np.unpackbits(packed, count=count).astype(np.bool_)
        known = held.words[_elements(rows, held.words.size)]
        words = np.empty_like(known)
        if words.size:
            decode_stream(source, name, "words", words, known)
        return held.after(rows, words)


def _elements(rows: Mask, size: int) -> Mask:
    """The marked partitions' elements."""
    return np.repeat(rows, ROW)[:size]
