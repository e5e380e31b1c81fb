"""A draft of moments in the forms that a policy chose."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

from torch import Tensor

from dynaquant_core.methods.base import Reference, Stream
from dynaquant_core.methods.exact_reader import words_digest
from dynaquant_core.methods.fixed import NoConfig
from dynaquant_core.methods.moments.forms import Coded, decoded, encoded
from dynaquant_core.methods.moments.held import CONTEXTUAL, MomentsReference, packed
from dynaquant_core.methods.moments.streams import moment_streams
from dynaquant_core.state import TensorSpec, words_of
from dynaquant_core.threads import map_threads

__all__ = ["MomentsDraft"]


class MomentsDraft:
    """A draft of moments; see `methods.base.Draft`.

    Args:
        config: the one point there is.
        state: live tensors by name.
        ref: the base, or None for a key checkpoint.
        choose: (name, tensor) -> letter of its form.
    """

    def __init__(
        self,
        config: NoConfig,
        state: Mapping[str, Tensor],
        ref: MomentsReference | None,
        choose: Callable[[str, Tensor], str],
    ) -> None:
        self.config, self.is_key = config, ref is None
        self._live: Mapping[str, Tensor] = state
        self._base, self._choose = ref, choose
        self._specs = {name: TensorSpec.of(tensor) for name, tensor in state.items()}
        digests = map_threads(lambda tensor: words_digest(words_of(tensor)), list(state.values()))
        self._digests = dict(zip(state, digests, strict=True))
        known = {} if ref is None else ref.digests
        self._changed = [name for name in state if known.get(name) != self._digests[name]]
        self._coded: dict[str, Coded] = {}
        self._streams: list[Stream] | None = None

    @property
    def decoded(self) -> Iterator[tuple[str, Tensor]]:
        """(name, tensor) as a reader would get them, on the live tensors' devices."""
        for name, tensor in self._live.items():
            yield name, decoded(self._code(name), self._specs[name]).to(tensor.device)

    @property
    def size(self) -> int:
        """Bytes of all streams: encoded to know it, and kept for `encode`."""
        if self._streams is None:
            self._streams = list(self._encoded(forget=False))
        return sum(len(stream.payload) for stream in self._streams)

    def detach(self) -> None:
        """Codes every tensor that changed, at most a byte a value, and lets go of the live ones."""
        for name in self._changed:
            self._code(name)
        self._live = {}

    def encode(self) -> tuple[Iterable[Stream], Reference]:
        """Streams, one in memory at a time unless `size` was asked for, and what the writer then knows."""
        self.detach()
        reference = self._reference()
        streams = self._encoded(forget=True) if self._streams is None else self._streams
        return streams, reference

    def _code(self, name: str) -> Coded:
        if name not in self._coded:
            tensor = self._live[name]
            self._coded[name] = encoded(tensor, self._choose(name, tensor))
        return self._coded[name]

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
