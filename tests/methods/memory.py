"""A table of streams that remembers what was read of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from torch import Tensor

from dynaquant_core.methods import Stream
from tests.methods.streams import StreamTable


class Memory(StreamTable):
    """Streams of a state, in memory; ``rows`` may be changed to look like a damaged file."""

    def __init__(self, state: Mapping[str, Tensor], streams: Iterable[Stream]) -> None:
        super().__init__(streams, state)
        self.read: list[tuple[str, str]] = []

    def get(self, name: str, kind: str) -> tuple[int, memoryview]:
        self.read.append((name, kind))
        return super().get(name, kind)

    def with_row(self, key: tuple[str, str], codec: int, payload: bytes) -> Memory:
        """A copy in which one stream is another."""
        copy = Memory({}, [])
        copy.specs, copy.rows = self.specs, self.rows | {key: (codec, payload)}
        return copy

    def without(self, key: tuple[str, str]) -> Memory:
        """A copy without one stream."""
        copy = Memory({}, [])
        copy.specs, copy.rows = self.specs, {other: row for other, row in self.rows.items() if other != key}
        return copy
