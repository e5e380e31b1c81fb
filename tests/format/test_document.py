"""docs/FORMAT.md is read by the reader it describes, and names tests that exist."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import torch
import xxhash

from dynaquant_core.format import FORMAT_VERSION, MAGIC, FileReader, limits
from dynaquant_core.format.layout import END, FOOTER_BYTES, HEADER_BYTES
from dynaquant_core.methods.exact import Exact
from dynaquant_core.state import rebuild, tree, unflatten
from dynaquant_core.state.leaves import MAX_NAME
from tests.format.samples import index_of, write

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def text():
    return (ROOT / "docs" / "FORMAT.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def dump(text):
    rows = re.search(r"```hexdump\n(.*?)```", text, re.DOTALL)[1].splitlines()
    for number, row in enumerate(rows):
        assert int(row[:4], 16) == 16 * number
    return bytes.fromhex("".join(row[6:] for row in rows))


def test_the_reader_reads_the_dump(tmp_path, dump):
    with FileReader(write(tmp_path / "example", dump)) as reader:
        reader.verify()
        state = Exact().decode(reader.source("exact"), None).state()
        found = unflatten(reader.index.skeleton, state.__getitem__)
    assert found["lr"] == 0.1
    assert torch.equal(found["w"], torch.tensor([1.0, -2.0]))


def test_the_dump_holds_the_index_that_is_printed(text, dump):
    printed = json.loads(re.search(r"```json\n(.*?)```", text, re.DOTALL)[1])
    footer, document = index_of(dump)
    assert document == printed
    assert f"offset {footer.offset}, {footer.stored} bytes stored, {footer.raw} decompressed" in text


def test_the_digest_is_computed_as_written(dump):
    footer, _ = index_of(dump)
    begin = len(dump) - FOOTER_BYTES
    covered = dump[:HEADER_BYTES] + dump[begin : begin + 24] + dump[footer.offset : begin]
    assert footer.digest == xxhash.xxh3_128_digest(covered)


def test_marks_version_and_sizes(text):
    assert f"`{MAGIC.hex(' ')}`" in text
    assert f"`{END.hex(' ')}`" in text
    assert f"format version, uint32: {FORMAT_VERSION} |" in text
    assert f"The header has {HEADER_BYTES} bytes, the footer {FOOTER_BYTES}." in text


def test_limits(text):
    table = dict(re.findall(r"^\| (.*?) \| (.*?)(?: \[.*)? \|$", text, re.MULTILINE))
    assert table["index, decompressed"] == f"{limits.MAX_INDEX_BYTES >> 20} MiB"
    assert eval_power(table["commas and opening brackets of the index"]) == limits.MAX_INDEX_NODES
    pair = [int(word) for word in table["digits of a number; bits of one in `meta`"].split("; ")]
    assert pair == [limits.MAX_INT_DIGITS, limits.MAX_META_BITS]
    pair = [eval_power(word) for word in table["tensors; streams"].split("; ")]
    assert pair == [limits.MAX_TENSORS, limits.MAX_STREAMS]
    pair = [
        eval_power(word)
        for word in table["dimensions of a tensor; its bytes, zeros counted as ones"].split("; ")
    ]
    assert pair == [limits.MAX_DIMENSIONS, limits.MAX_TENSOR_BYTES]
    pair = [int(word) for word in table["levels of the tree; characters of a name"].split("; ")]
    assert pair == [tree.MAX_DEPTH, MAX_NAME]
    assert eval_power(table["characters of all names"]) == rebuild.MAX_NAMES


def eval_power(word):
    base, _, power = word.partition("^")
    return int(base) ** int(power or 1)


def test_the_tests_it_names_exist(text):
    named = set(re.findall(r"\btest_\w+", text))
    sources = [
        path.read_text(encoding="utf-8")
        for room in ("format", "state", "store")
        for path in (ROOT / "tests" / room).glob("test_*.py")
    ]
    missing = [name for name in named if not any(f"def {name}(" in source for source in sources)]
    assert len(named) > 12
    assert not missing
