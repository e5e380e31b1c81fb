"""What drafts of moments share: digests tell what changed, each tensor is coded once, streams on demand."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from typing import Generic, TypeVar

from torch import Tensor

from dynaquant_core.arithmetic import plainly
from dynaquant_core.methods.base import Stream
from dynaquant_core.methods.digests import digests_of
from dynaquant_core.methods.fixed import NoConfig
from dynaquant_core.state import TensorSpec
from dynaquant_core.threads import map_threads

__all__ = ["ChangedDraft"]

Coded = TypeVar("Coded")


class ChangedDraft(ABC, Generic[Coded]):
    """Half of a `methods.base.Draft`: all but `encode`.

    Args:
        config: the one point there is.
        state: live tensors by name.
        known: digests of the base's tensors; None for a key checkpoint.
    """

    def __init__(
        self, config: NoConfig, state: Mapping[str, Tensor], known: Mapping[str, bytes] | None
    ) -> None:
        self.config, self.is_key = config, known is None
        self._live: Mapping[str, Tensor] = state
        self._specs = {name: TensorSpec.of(tensor) for name, tensor in state.items()}
        self._digests = digests_of(state)
        self._changed = [name for name in state if (known or {}).get(name) != self._digests[name]]
        self._coded: dict[str, Coded] = {}
        self._streams: list[Stream] | None = None

    @abstractmethod
    def _encode(self, tensor: Tensor, name: str) -> Coded:
        """Codes one tensor, at most a byte a value."""

    @abstractmethod
    def _decode(self, coded: Coded, spec: TensorSpec) -> Tensor:
        """What a reader would get of it."""

    @abstractmethod
    def _encoded(self, *, forget: bool) -> Iterator[Stream]:
        """The streams; ``forget``: codes are let go of as they are written."""

    @property
    @plainly
    def decoded(self) -> Iterator[tuple[str, Tensor]]:
        """(name, tensor) as a reader would get them, on the live tensors' devices."""
        for name, tensor in self._live.items():
            yield name, self._decode(self._code(name), self._specs[name]).to(tensor.device)

    @property
    def size(self) -> int:
        """Bytes of all streams: encoded to know it, and kept for `encode`."""
        if self._streams is None:
            self._streams = list(self._encoded(forget=False))
        return sum(len(stream.payload) for stream in self._streams)

    def detach(self) -> None:
        """Codes every tensor that changed, and lets go of the live ones."""
        map_threads(self._code, self._changed)
        self._live = {}

    def _key(self, name: str) -> int:
        """Of a tensor's draws: new ones at every save, unless nothing changed, and everywhere the same."""
        return int.from_bytes(self._digests[name][:8], "little")

    def _code(self, name: str) -> Coded:
        if name not in self._coded:
            self._coded[name] = self._encode(self._live[name], name)
        return self._coded[name]
