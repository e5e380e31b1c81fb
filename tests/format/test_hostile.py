"""Damaged and hostile files: each is refused with an error of the format, before it can do harm."""

from __future__ import annotations

import os
import socket
import tracemalloc
from contextlib import suppress
from pathlib import Path

import pytest
import zstandard

from dynaquant_core.errors import (
    ChecksumError,
    CorruptFileError,
    LimitError,
    StorageError,
    TruncatedError,
    UnsafePathError,
    VersionError,
)
from dynaquant_core.format import FileReader, limits
from dynaquant_core.format.layout import HEADER_BYTES, header
from tests.format.samples import index_of, resealed, sample, with_index, write


def read_all(path):
    with FileReader(path) as reader:
        reader.verify()


def test_every_flip_of_every_bit_is_found(tmp_path):
    data = sample()
    path = tmp_path / "a.dq"
    for position in range(len(data)):
        for bit in range(8):
            changed = bytearray(data)
            changed[position] ^= 1 << bit
            path.write_bytes(changed)
            with pytest.raises(CorruptFileError):
                read_all(path)


def test_every_truncation_is_found(tmp_path):
    data = sample()
    path = tmp_path / "a.dq"
    for length in range(len(data)):
        path.write_bytes(data[:length])
        with pytest.raises(CorruptFileError):
            read_all(path)


def test_an_empty_file_was_cut_off(tmp_path):
    with pytest.raises(TruncatedError):
        FileReader(write(tmp_path / "a", b""))


@pytest.mark.parametrize("extra", [b"\0", bytes(100), b"junk" * 2000])
def test_anything_added_is_found(tmp_path, extra):
    data = sample()
    for changed in (data + extra, extra + data, data[:HEADER_BYTES] + extra + data[HEADER_BYTES:]):
        with pytest.raises(CorruptFileError):
            read_all(write(tmp_path / "a", changed))


def test_swapped_streams_of_equal_length_are_found_and_named(tmp_path):
    streams = [("exact", "model.b", "one", 0, b"A" * 9), ("exact", "model.b", "two", 0, b"B" * 9)]
    data = bytearray(sample(streams))
    start = HEADER_BYTES
    data[start : start + 18] = data[start + 9 : start + 18] + data[start : start + 9]
    with FileReader(write(tmp_path / "a", bytes(data))) as reader:
        with pytest.raises(ChecksumError, match=r"'one' stream of the tensor 'model\.b'"):
            reader.source("exact").get("model.b", "one")
        with pytest.raises(ChecksumError):
            reader.verify()


def test_one_bad_stream_does_not_hide_the_others(tmp_path):
    data = bytearray(sample())
    data[HEADER_BYTES] ^= 1
    with FileReader(write(tmp_path / "a", bytes(data))) as reader:
        assert reader.source("exact").get("model.b", "values")[1] == b"abcdefghijkl"
        with pytest.raises(ChecksumError, match="the part 'weights'"):
            reader.source("weights").get("", "centres")


def test_future_versions_say_what_to_install(tmp_path):
    data = bytearray(sample())
    data[8] = 2
    with pytest.raises(VersionError, match=r"newer DynaQuant .* pip install \.$"):
        FileReader(write(tmp_path / "a", bytes(data)))
    with pytest.raises(VersionError):
        FileReader(write(tmp_path / "b", bytes(data[:HEADER_BYTES]) + b"a footer we do not know"))


def test_foreign_files(tmp_path):
    for data in (b"PK\x03\x04" + bytes(200), b"hello\n", bytes(4096), b"\x89DQCP\n\x1a" + bytes(200)):
        with pytest.raises(CorruptFileError, match="not a DynaQuant"):
            FileReader(write(tmp_path / "a", data))


def test_links_pipes_folders_sockets_and_devices(tmp_path):
    real = write(tmp_path / "real", sample())
    (tmp_path / "link").symlink_to(real)
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")
    os.mkfifo(tmp_path / "pipe")
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(tmp_path / "socket"))
    listener.close()
    for name in ("link", "dangling", "pipe", "socket", "."):
        with pytest.raises(UnsafePathError):
            FileReader(tmp_path / name)
    for path in ("/dev/zero", "a\0b"):
        with pytest.raises(UnsafePathError):
            FileReader(path)


def test_a_missing_file_is_the_systems_refusal(tmp_path):
    with pytest.raises(StorageError, match="No such file"):
        FileReader(tmp_path / "nothing")


def test_a_file_cut_while_it_is_open(tmp_path):
    path = write(tmp_path / "a", sample())
    with FileReader(path) as reader:
        os.truncate(path, HEADER_BYTES + 3)
        with pytest.raises(TruncatedError):
            reader.source("weights").get("", "centres")


def open_files():
    return len(list(Path("/proc/self/fd").iterdir()))


def test_no_descriptor_is_left_open(tmp_path):
    before = open_files()
    data = sample()
    for length in range(0, len(data), 7):
        with pytest.raises(CorruptFileError):
            FileReader(write(tmp_path / "a", data[:length]))
    assert open_files() == before


BOMB = 1 << 40


def bombs():
    """Name -> file; small files that announce or unfold to far more than they hold."""
    head = header()
    gigabyte = zstandard.ZstdCompressor().compress(bytes(limits.MAX_INDEX_BYTES))
    stream = zstandard.ZstdCompressor(write_content_size=False).compress(bytes(1 << 20))
    deep = b"[" * 200_000 + b"]" * 200_000
    commas = b"[" + b"0," * (limits.MAX_INDEX_NODES + 1) + b"0]"
    data = sample()
    yield "raw length over the limit", with_index(head, b"", raw=BOMB, stored=gigabyte)
    yield "raw length that is a lie", with_index(head, b"", raw=10, stored=gigabyte)
    yield "frame without a size", with_index(head, b"", raw=100, stored=stream)
    yield "frame cut short", with_index(head, b"", raw=limits.MAX_INDEX_BYTES, stored=gigabyte[:-3])
    yield "two frames", with_index(head, b"", raw=limits.MAX_INDEX_BYTES, stored=gigabyte + gigabyte)
    yield "not a frame", with_index(head, b"", raw=4, stored=b"junk")
    yield "zeros for JSON", with_index(head, bytes(limits.MAX_INDEX_BYTES))
    yield "deep JSON", with_index(head, deep)
    yield "millions of values", with_index(head, commas)
    yield "long number", with_index(head, b'{"meta": ' + b"9" * 100_000 + b"}")
    yield "key given twice", with_index(head, b'{"meta": {}, "meta": {}}')
    yield "NaN", with_index(head, b'{"meta": NaN}')
    yield "a list", with_index(head, b"[]")
    yield "not UTF-8", with_index(head, b'{"\xff": 0}')
    yield (
        "huge shape",
        resealed(data, lambda index: index["tensors"]["shape"].__setitem__(0, [1 << 30, 1 << 30])),
    )
    yield (
        "huge empty shape",
        resealed(data, lambda index: index["tensors"]["shape"].__setitem__(0, [0, 1 << 60])),
    )
    yield "many dimensions", resealed(data, lambda index: index["tensors"]["shape"].__setitem__(0, [1] * 65))
    yield (
        "stream of 2^62 bytes",
        resealed(data, lambda index: index["streams"]["bytes"].__setitem__(0, 1 << 62)),
    )
    many = {"k" * 1000: ["l", *([["t"]] * 300_000)]}
    yield "names that multiply", resealed(data, lambda index: index.__setitem__("tree", many))


@pytest.mark.parametrize(
    ("name", "data"), list(bombs()), ids=lambda value: value if isinstance(value, str) else ""
)
def test_bombs(tmp_path, name, data):
    path = write(tmp_path / "bomb", data)
    tracemalloc.start()
    with pytest.raises(CorruptFileError):
        FileReader(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 5 * limits.MAX_INDEX_BYTES


def test_a_raw_length_over_the_limit_is_refused_before_it_is_allocated(tmp_path):
    data = with_index(header(), b"", raw=limits.MAX_INDEX_BYTES + 1, stored=b"x" * 50)
    tracemalloc.start()
    with pytest.raises(LimitError):
        FileReader(write(tmp_path / "a", data))
    assert tracemalloc.get_traced_memory()[1] < 1 << 20
    tracemalloc.stop()


def put(*path, value):
    def change(document):
        node = document
        for key in path[:-1]:
            node = node[key]
        node[path[-1]] = value

    return change


def drop(*path):
    def change(document):
        node = document
        for key in path[:-1]:
            node = node[key]
        del node[path[-1]]

    return change


TAMPERED = {
    "no meta": drop("meta"),
    "no tree": drop("tree"),
    "no tensors": drop("tensors"),
    "no streams": drop("streams"),
    "meta of another type": put("meta", value=["l"]),
    "a leaf in meta": put("meta", "step", value=["t"]),
    "step that is no number": put("meta", "step", value="1"),
    "kind": put("meta", "kind", value="other"),
    "delta without base": put("meta", "kind", value="delta"),
    "base without digest": put("meta", "base", value={"step": 1, "sequence": 1}),
    "part without method": put("meta", "parts", "exact", value={}),
    "report": put("meta", "report", value=3),
    "unused part without method": put("meta", "unused", value={}),
    "leaf more than tensors": put("tree", "more", value=["t"]),
    "leaf less than tensors": put("tree", "model", "b", value=0),
    "tie to nothing": put("tree", "model", "tied", value=["t", 9]),
    "unknown node": put("tree", "step", value=["?"]),
    "dtype number": put("tensors", "dtype", 0, value=7),
    "dtype name": put("tensors", "dtypes", 0, value="object"),
    "dtypes twice": put("tensors", "dtypes", value=["float32", "float32"]),
    "role": put("tensors", "role", 0, value=3),
    "part": put("tensors", "part", 0, value=-1),
    "negative dimension": put("tensors", "shape", 0, value=[-4, 8]),
    "float dimension": put("tensors", "shape", 0, value=[4.0, 8]),
    "column too short": put("tensors", "role", value=[0]),
    "stream of no tensor": put("streams", "move", 0, value=5),
    "stream of a foreign part": put("streams", "part", 1, value=1),
    "stream twice": put("streams", "kind", value=[0, 0, 0, 0, 0]),
    "codec": put("streams", "codec", 0, value=256),
    "length": put("streams", "bytes", 0, value=11),
    "negative length": put("streams", "bytes", 0, value=-1),
    "no checksums": put("streams", "sums", value=""),
    "checksums that are no base64": put("streams", "sums", value="*"),
}


@pytest.mark.parametrize("change", TAMPERED.values(), ids=TAMPERED.keys())
def test_an_index_with_a_right_checksum_is_still_checked(tmp_path, change):
    with pytest.raises(CorruptFileError):
        read_all(write(tmp_path / "a", resealed(sample(), change)))


def test_resealing_alone_changes_nothing(tmp_path):
    read_all(write(tmp_path / "a", resealed(sample(), lambda document: None)))


def test_every_value_of_the_index_may_be_anything(tmp_path):
    """Each place of the index in turn holds each kind of value: right or refused, never a foreign error."""
    data = sample()
    places = list(walk(index_of(data)[1], ()))
    assert len(places) > 60
    for place in places:
        for value in (None, -1, 1 << 70, 0.5, "x", [], ["t"], {}, [[]], True):
            path = write(tmp_path / "a", resealed(data, put(*place, value=value)))
            with suppress(CorruptFileError):
                read_all(path)


def walk(node, path):
    members = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    for key, child in members:
        yield (*path, key)
        yield from walk(child, (*path, key))
