"""Streams in memory: what a file's source offers a decoder, without the file, and the way there and back."""

from __future__ import annotations

import torch
from hypothesis import strategies as st

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


def hostile(data, source):
    """A copy of a table in which Hypothesis damaged a stream or two, and perhaps took one away."""
    table = StreamTable([], {})
    table.specs, table.rows = source.specs, dict(source.rows)
    for _ in range(data.draw(st.integers(1, 2))):
        which = data.draw(st.sampled_from(sorted(table.rows)))
        table.rows[which] = damaged(data, *table.rows[which])
    if data.draw(st.integers(0, 9)) == 0:
        del table.rows[which]
    return table


def damaged(data, codec, payload):
    """A stream with some bytes changed, an end cut off, or another codec's name on it."""
    changed = bytearray(payload)
    for _ in range(data.draw(st.integers(1, 4))):
        if changed:
            reach = min(len(changed), data.draw(st.sampled_from([8, len(changed)])))
            changed[data.draw(st.integers(0, reach - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(changed))) if data.draw(st.booleans()) else len(changed)
    return data.draw(st.sampled_from([codec, codec, *range(13)])), bytes(changed[:cut])
