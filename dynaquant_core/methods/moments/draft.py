"""A draft of moments in the forms that a policy chose."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final

import numpy as np
from torch import Tensor

from dynaquant_core.methods.base import Reference, Stream
from dynaquant_core.methods.digests import digests_of
from dynaquant_core.methods.fixed import NoConfig
from dynaquant_core.methods.moments.changed import ChangedDraft
from dynaquant_core.methods.moments.forms import Coded, decoded
from dynaquant_core.methods.moments.held import CONTEXTUAL, MomentsReference, packed
from dynaquant_core.methods.moments.streams import moment_streams
from dynaquant_core.quantize.flat import flatten
from dynaquant_core.state import TensorSpec

__all__ = ["MomentsDraft"]

TERNARY: Final = "t"
#: Code of a zero in that form.
NAUGHT: Final = 1
#: Forms that change what they gave back themselves.
FITTED: Final = "tpq"
#: Elements that are looked at before a tensor is decoded.
GLANCE: Final = 1 << 12


class MomentsDraft(ChangedDraft[Coded]):
    """A draft of moments; see `methods.base.Draft`.

    Args:
        config: the one point there is.
        state: live tensors by name.
        ref: the base, or None for a key checkpoint.
        write: (name, tensor, key of its draws) -> the tensor in its form.
    """

    def __init__(
        self,
        config: NoConfig,
        state: Mapping[str, Tensor],
        ref: MomentsReference | None,
        write: Callable[[str, Tensor, int], Coded],
    ) -> None:
        super().__init__(config, state, None if ref is None else {**ref.digests, **_restored(state, ref)})
        self._base, self._write = ref, write

    def encode(self) -> tuple[Iterable[Stream], Reference]:
        """Streams, one in memory at a time unless `size` was asked for, and what the writer then knows."""
        self.detach()
        reference = self._reference()
        streams = self._encoded(forget=True) if self._streams is None else self._streams
        return streams, reference

    def _encode(self, tensor: Tensor, name: str) -> Coded:
        if self._base is not None and name not in self._changed and name in self._base.coded:
            return self._base.coded[name]
        return self._write(name, tensor, self._key(name))

    def _decode(self, coded: Coded, spec: TensorSpec) -> Tensor:
        return decoded(coded, spec)

    def _encoded(self, *, forget: bool) -> Iterator[Stream]:
        coded = {name: self._code(name) for name in self._changed}
        if forget:
            self._coded = {}
        return moment_streams(self._specs, coded, self._base, forget=forget)

    def _reference(self) -> MomentsReference:
        """Digests, and the 4-bit codes, new or of the base where nothing changed."""
        held = {
            name: packed(self._coded[name])
            for name in self._changed
            if self._coded[name].letter in CONTEXTUAL
        }
        for name in set(self._specs) - set(self._changed) if self._base is not None else ():
            kept = self._base.compact(name) if self._base is not None else None
            if kept is not None:
                held[name] = kept
        return MomentsReference(self._specs, {}, self._digests, held)


def _restored(state: Mapping[str, Tensor], ref: MomentsReference) -> dict[str, bytes]:
    """Digests of what is fitted, and still what was restored: coded again, it would lose something again."""
    fitted = {name: coded for name, coded in ref.coded.items() if coded.letter in FITTED and name in state}
    still = {
        name: decoded(coded, ref.specs[name])
        for name, coded in fitted.items()
        if ref.specs.get(name) == TensorSpec.of(state[name]) and _may_be(state[name], coded)
    }
    return digests_of(still)


def _may_be(tensor: Tensor, coded: Coded) -> bool:
    """Whether a tensor's first elements are zero where its signs are; training leaves hardly any zero."""
    if coded.letter != TERNARY:
        return True
    first = flatten(tensor.detach())[:GLANCE].cpu()
    return bool(np.array_equal((first == 0).numpy(), coded.codes[:GLANCE] == NAUGHT))
