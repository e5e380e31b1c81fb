"""What is written is what is read."""

from __future__ import annotations

import io
import math
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dynaquant_core.errors import CorruptFileError, StorageError
from dynaquant_core.format import FileReader, FileWriter, TensorEntry
from dynaquant_core.state import TensorSpec, assign_roles, flatten
from tests.format.samples import META, STREAMS, TENSORS, TREE, sample, write


def test_round_trip(tmp_path):
    data = sample()
    with FileReader(write(tmp_path / "a.dq", data)) as reader:
        index = reader.index
        assert index.tensors == tuple(TENSORS)
        assert index.skeleton == TREE
        assert math.isnan(index.meta.pop("report")["quality"])
        assert index.meta == {key: value for key, value in META.items() if key != "report"}
        assert reader.nbytes == len(data)
        reader.verify()
        weights, exact = reader.source("weights"), reader.source("exact")
        assert weights.specs == {"model.w": TensorSpec((4, 8), "float32")}
        assert weights.get("", "centres") == (0, b"shared bytes")
        assert weights.get("model.w", "codes") == (4, bytes(range(40)))
        assert weights.get("model.w", "protected") == (0, b"")
        assert exact.get("model.b", "values") == (6, b"abcdefghijkl")
        assert exact.has("", "layout")
        assert not exact.has("model.w", "codes")
        with pytest.raises(CorruptFileError, match="codes"):
            exact.get("model.b", "codes")


def test_the_digest_is_the_files_identity(tmp_path):
    first, again, other = sample(), sample(), sample(meta={**META, "sequence": 4})
    digests = []
    for i, data in enumerate((first, again, other)):
        with FileReader(write(tmp_path / str(i), data)) as reader:
            digests.append(reader.digest)
    assert digests[0] == digests[1] != digests[2]
    assert all(len(digest) == 32 for digest in digests)


def test_finish_returns_the_digest_that_readers_find(tmp_path):
    with (tmp_path / "f").open("wb") as file:
        writer = FileWriter(file)
        digest = writer.finish({**META, "parts": {}}, {"step": 1}, [])
    with FileReader(tmp_path / "f") as reader:
        assert reader.digest == digest
        assert reader.nbytes == writer.nbytes
        assert reader.index.tensors == ()


def test_streams_are_read_from_several_threads(tmp_path):
    streams = [("exact", "model.b", f"kind{i}", i % 256, bytes([i % 256]) * (1000 + i)) for i in range(200)]
    with FileReader(write(tmp_path / "a", sample(streams))) as reader, ThreadPoolExecutor(8) as pool:
        source = reader.source("exact")
        found = list(pool.map(lambda i: source.get("model.b", f"kind{i}"), range(200)))
    assert found == [(codec, payload) for _, _, _, codec, payload in streams]


@pytest.mark.parametrize(
    "streams",
    [
        [*STREAMS, STREAMS[0]],
        [("weights", "model.b", "codes", 0, b"")],
        [("nobody", "", "codes", 0, b"")],
        [("weights", "no.such", "codes", 0, b"")],
    ],
    ids=["twice", "foreign part", "unknown part", "unknown tensor"],
)
def test_a_writer_never_writes_what_a_reader_would_refuse(streams):
    with pytest.raises(CorruptFileError):
        sample(streams)


def test_the_table_of_tensors_must_be_the_leaves_of_the_tree():
    with pytest.raises(CorruptFileError):
        sample(tree={"model": {"w": ["t"]}})
    with pytest.raises(CorruptFileError):
        sample(tensors=TENSORS[::-1])


@pytest.mark.parametrize(
    "change",
    [{"step": -1}, {"kind": "delta"}, {"base": {"step": 1}}, {"parts": {"weights": {}}}, {"sequence": True}],
    ids=repr,
)
def test_a_description_that_is_not_sound_is_refused(change):
    with pytest.raises(CorruptFileError):
        sample(meta={**META, **change})


class Full(io.RawIOBase):
    """Takes 100 bytes, three at a time, and then no more."""

    def __init__(self):
        self.taken = b""

    def writable(self):
        return True

    def write(self, data):
        if len(self.taken) >= 100:
            raise OSError(28, "No space left on device")
        self.taken += bytes(data[:3])
        return min(3, len(data))


def test_short_writes_go_on_and_a_full_disk_is_one_clear_error():
    disk = Full()
    writer = FileWriter(disk)
    writer.add("exact", "", "a", 0, bytes(range(50)))
    assert disk.taken[12:] == bytes(range(50))
    with pytest.raises(StorageError, match="No space left"):
        writer.add("exact", "", "b", 0, bytes(1000))


@settings(deadline=None, max_examples=60)
@given(
    st.lists(
        st.tuples(st.sampled_from(["", "model.w"]), st.integers(0, 255), st.binary(max_size=50)), max_size=20
    )
)
def test_any_streams(tmp_path_factory, rows):
    streams = [("weights", name, str(i), codec, payload) for i, (name, codec, payload) in enumerate(rows)]
    path = write(tmp_path_factory.getbasetemp() / "any.dq", sample(streams))
    with FileReader(path) as reader:
        source = reader.source("weights")
        for _, name, kind, codec, payload in streams:
            assert source.get(name, kind) == (codec, payload)


def gpt_index(tmp_path):
    """The index of a GPT of 4 layers with Adam: 150 tensors, 200 streams."""
    names = ["ln1.weight", "ln1.bias", "attn.qkv.weight", "attn.proj.weight", "ln2.weight", "ln2.bias"]
    names += ["mlp.up.weight", "mlp.down.weight"]
    model = {
        f"blocks.{i}.{name}": torch.empty(256, 256 if "ln" not in name else 1)
        for i in range(4)
        for name in names
    }
    model |= {"wte": torch.empty(65, 256), "wpe": torch.empty(64, 256)}
    moments = {
        i: {"step": torch.tensor(1.0), "exp_avg": w.clone(), "exp_avg_sq": w.clone()}
        for i, w in enumerate(model.values())
    }
    tree = flatten(
        {"model": model, "optimizer": {"state": moments, "param_groups": [{"lr": 1e-3}]}, "step": 200}
    )
    roles = assign_roles(tree.leaves)
    parts = {"weight": "weights", "moment": "moments", "exact": "exact"}
    entries = [
        TensorEntry(leaf.name, tuple(leaf.tensor.shape), "float32", roles[leaf.name], parts[roles[leaf.name]])
        for leaf in tree.leaves
    ]
    meta = {**META, "parts": dict.fromkeys(parts.values(), PART)}
    generator = torch.Generator().manual_seed(0)
    streams = [
        (
            entry.part,
            entry.name,
            kind,
            4,
            torch.randint(256, (3000 + 37 * i,), generator=generator).byte().numpy().tobytes(),
        )
        for i, entry in enumerate(entries)
        for kind in ("codes", "centres")[: 2 if entry.part == "weights" else 1]
        if entry.part != "exact"
    ]
    data = sample(streams, meta, tree.skeleton, entries)
    return len(entries), len(streams), len(data) - sum(len(stream[4]) for stream in streams)


PART = {
    "method": "dynaquant",
    "options": {"coder": "auto", "sigma": 0.5},
    "config": {"bins": 16, "prune": 0.1},
}


def test_the_index_of_a_small_model_is_small(tmp_path):
    tensors, streams, overhead = gpt_index(tmp_path)
    assert tensors > 130
    assert streams > 130
    assert overhead < 8 * streams + 9 * tensors + 600  # checksums cannot be compressed
