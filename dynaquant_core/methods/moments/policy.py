"""What the small policies share: the method protocol around a choice of forms."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from typing import ClassVar

from torch import Tensor

from dynaquant_core.errors import MissingBaseError
from dynaquant_core.methods.base import Hints, Reference, Stream, StreamSource
from dynaquant_core.methods.fixed import NoConfig, OnePoint
from dynaquant_core.methods.moments.draft import MomentsDraft
from dynaquant_core.methods.moments.eight_bit import is_signed
from dynaquant_core.methods.moments.forms import Coded, encoded
from dynaquant_core.methods.moments.held import MomentsReference
from dynaquant_core.methods.moments.reader import MomentsDecoder
from dynaquant_core.methods.moments.streams import moment_streams
from dynaquant_core.methods.streams import chosen
from dynaquant_core.quantize.factors import factor_count
from dynaquant_core.state import has_range, moment_kind, never_falls

__all__ = ["MomentsPolicy", "worth_factoring"]

logger = logging.getLogger(__name__)

#: Elements for each value of a row or column: with fewer, blocks are as small.
WORTH = 4


def worth_factoring(tensor: Tensor) -> bool:
    """Whether a value a row and a column are far fewer than the elements.

    Example:
        >>> import torch
        >>> worth_factoring(torch.zeros(64, 64)), worth_factoring(torch.zeros(64))
        (True, False)
    """
    return WORTH * factor_count(tensor.shape) <= tensor.numel()


class MomentsPolicy(OnePoint, ABC):
    """A moments policy: a name, and the form in which it writes a first and a second moment.

    Attributes:
        loss: what the log says once, at the first save; "" where nothing is dropped.
    """

    name: str = ""
    owns = frozenset({"moment"})
    loss: ClassVar[str] = ""

    def __init__(self) -> None:
        self._told = False

    @abstractmethod
    def first(self, tensor: Tensor) -> str:
        """The form of a moment that has signs (an average of gradients or steps)."""

    @abstractmethod
    def second(self, tensor: Tensor) -> str:
        """The form of a moment without negative values (an average of squares or magnitudes)."""

    def factor(self, tensor: Tensor) -> str:  # noqa: ARG002
        """The form of a second moment that its optimizer keeps as rows and columns already."""
        return "e"

    def letter(self, name: str, tensor: Tensor) -> str:
        """The form of a tensor by what its name says it averages; 8 bits where it says nothing.

        What centred RMSprop takes from its second moment comes back as zeros: with rounding on both sides
        the difference could be negative, and its root not a number.
        """
        kind = moment_kind(name)
        if kind == "first":
            return self.first(tensor)
        if kind == "centre":
            return "z"
        if is_signed(tensor):
            return "E"
        if kind == "second":
            return self.second(tensor)
        return self.factor(tensor) if kind == "factor" else "e"

    def encoded(self, name: str, tensor: Tensor, key: int | None = None) -> Coded:
        """A moment in its form; ``key`` is of its draws.

        The largest second moments so far are not drawn in blocks, where chance would carry them up.  Their
        rows are: as products they come back too small on the whole, and to the nearest step even smaller.
        """
        letter = self.letter(name, tensor)
        return encoded(tensor, letter, None if letter == "e" and never_falls(name) else key)

    def accepts(self, tensor: Tensor) -> bool:
        """Floating tensors of one dimension and more, of any length, whose values float32 tells apart."""
        return tensor.dim() > 0 and tensor.numel() > 0 and has_range(tensor)

    def draft(
        self,
        state: Mapping[str, Tensor],
        ref: Reference | None,
        config: NoConfig,
        hints: Hints,  # noqa: ARG002
    ) -> MomentsDraft:
        """Drafts a checkpoint; reads every tensor once for its digest."""
        if self.loss and not self._told:
            self._told = True
            logger.warning("moments=%r: %s", self.name, self.loss)
        base = ref if isinstance(ref, MomentsReference) else None
        return MomentsDraft(config, state, base, self.encoded)

    def decode(
        self, streams: StreamSource, ref: Reference | None, names: Iterable[str] | None = None
    ) -> MomentsReference:
        """Reads moments back; small ones are always read, since the next link may stand on any of them.

        Raises:
            CorruptFileError: the streams are not what this method writes.
            MissingBaseError: they stand on a base that is not given.
        """
        base = ref if isinstance(ref, MomentsReference) else None
        return MomentsDecoder(streams, base).reference(chosen(streams.specs, names))

    def rekey(self, reference: Reference) -> Iterable[Stream]:
        """Streams that decode, without a base, to what a reader holds."""
        if not isinstance(reference, MomentsReference) or set(reference.specs) - set(reference.coded):
            raise MissingBaseError("The codes of the moments are not held; load their checkpoint first.")
        coded = {name: reference.coded[name] for name in reference.specs}
        return moment_streams(coded, coded, None, forget=False)
