"""Streams in memory: what a file's source offers a decoder, without the file, and the way there and back."""

from __future__ import annotations

import torch

from dynaquant_core.errors import CorruptFileError
from dynaquant_core.methods.base import Hints
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


def store(method, state, ref, config, hints=None):
    """Drafts, encodes and decodes; returns (draft's view, writer's reference, reader's, table of streams)."""
    draft = method.draft(state, ref, config, hints or Hints())
    seen = {name: tensor.clone() for name, tensor in draft.decoded}
    streams, held = draft.encode()
    table = StreamTable(streams, state)
    read = method.decode(table, ref)
    return seen, held, read, table


def assert_same(left, right):
    """Two states have the same names in the same order, dtypes and values."""
    assert list(left) == list(right)
    for name, tensor in left.items():
        assert tensor.dtype == right[name].dtype
        assert torch.equal(tensor, right[name]), name
