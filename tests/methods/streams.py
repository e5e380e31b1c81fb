"""A table of streams in memory: what a file's source offers a decoder, without the file."""

from __future__ import annotations

from dynaquant_core.errors import CorruptFileError
from dynaquant_core.state.spec import TensorSpec


class StreamTable:
    """Streams by (name, kind), with the specs of the tensors they belong to."""

    def __init__(self, streams, state):
        self.specs = {name: TensorSpec.of(tensor) for name, tensor in state.items()}
        self.rows = {(stream.name, stream.kind): (stream.codec, stream.payload) for stream in streams}

    def get(self, name, kind):
        try:
            codec, payload = self.rows[name, kind]
        except KeyError:
            raise CorruptFileError(f"no stream {kind!r} for tensor {name!r}.") from None
        return codec, memoryview(payload)

    def has(self, name, kind):
        return (name, kind) in self.rows

    @property
    def nbytes(self):
        return sum(len(payload) for _, payload in self.rows.values())
