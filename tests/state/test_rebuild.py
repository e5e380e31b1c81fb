"""Skeletons from elsewhere: each is taken or refused with an error of the format, whatever it holds."""

from __future__ import annotations

import json
from contextlib import suppress

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dynaquant_core.errors import CorruptFileError, DynaQuantError
from dynaquant_core.state import leaf_names, unflatten, unpack

TAGS = [*"tmnNBSLUlukoifbdyzps", "x", ""]

BAD = [
    [],
    [["t"]],
    [None],
    ["x"],
    ["t", 0],
    ["l", ["t"], ["t", 1]],
    ["l", ["t"], ["n", 0]],
    ["l", ["t"], ["t", True]],
    ["l", ["t"], ["t", 0, 0]],
    ["k", [1, 1], [0, 0]],
    ["k", [1], []],
    ["k", [True], [0]],
    ["k", [["d", 1, 2, 3]], [0]],
    ["k", 1, 2],
    ["o", ["l"]],
    ["o", ["o", {}]],
    ["o"],
    ["i", "zz"],
    ["i", 5],
    ["f", "00"],
    ["b", "*"],
    ["d", 10**12, 0, 0],
    ["d", "x", 0, 0],
    ["d", 1],
    ["y", "qint8"],
    ["y", ["float32"]],
    ["z", -1.5],
    ["z", "a"],
    ["p", 3],
    ["m"],
    ["m", 0],
    ["m", [0, 0]],
    ["m", [0, 2]],
    ["m", [True, False]],
    ["m", [0, 1], 2],
    ["l", ["m", [1, 0]], ["m", 0]],
    ["s", "O", ""],
    ["s", "<f4", "00"],
    ["s", "<U99999999999", ""],
    ["s", "<U1", "ffffffff"],
    ["s", ">U2", "0000006100110000"],
    ["N", "|O", [1]],
    ["N", "<f4", 3],
    ["N", "<f4", [-1]],
    ["N", "<f4"],
    ["B", 0],
    ["S", "x"],
    ["L", 1],
]


@pytest.mark.parametrize("node", BAD, ids=repr)
def test_nodes_that_are_not_of_the_format(node):
    with pytest.raises(CorruptFileError):
        leaf_names({"a": node})
    with pytest.raises(CorruptFileError):
        unflatten({"a": node}, lambda name: torch.zeros(2, dtype=torch.uint8))


@pytest.mark.parametrize("tag", ["B", "S", "L", "U"])
def test_data_of_the_wrong_dtype(tag):
    with pytest.raises(CorruptFileError):
        unflatten([tag], lambda name: torch.zeros(3, dtype=torch.float16))


def test_text_that_is_not_utf8():
    with pytest.raises(CorruptFileError):
        unflatten(["S"], lambda name: torch.tensor([255], dtype=torch.uint8))


def test_raw_array_of_another_size_and_of_absurd_dimensions():
    for node in (["N", ">f4", [3]], ["N", ">f4", [2**62, 2**62]]):
        with pytest.raises(CorruptFileError):
            unflatten(node, lambda name: torch.zeros(8, dtype=torch.uint8))
    with pytest.raises(CorruptFileError):
        unflatten(["N", ">f4", [2**62, 2**62, 0]], lambda name: torch.zeros(0, dtype=torch.uint8))


def test_raw_text_of_what_is_no_letter():
    """NumPy makes such an array and fails wherever somebody looks at it."""
    for order, last in (("<", [0, 0, 17, 0]), (">", [0, 17, 0, 0])):
        with pytest.raises(CorruptFileError, match="N"):
            unflatten(
                ["N", f"{order}U1", [2]], lambda name, last=last: torch.tensor([0, 0, 0, 0, *last]).byte()
            )
    letters = torch.tensor([0xFF, 0xFF, 16, 0, 0x61, 0, 0, 0], dtype=torch.uint8)
    assert unflatten(["N", "<U1", [2]], lambda name: letters).tolist() == ["\U0010ffff", "a"]


def test_depth_and_name_bombs():
    deep: object = 0
    for _ in range(300):
        deep = ["l", deep]
    with pytest.raises(CorruptFileError):
        leaf_names(deep)
    with pytest.raises(CorruptFileError):
        leaf_names({"k" * 2000: ["t"]})


def test_a_leaf_where_none_may_be():
    with pytest.raises(CorruptFileError):
        unpack({"w": ["t"]})


nodes = st.recursive(
    st.one_of(
        st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=6), st.sampled_from(TAGS)
    ),
    lambda inner: st.one_of(
        st.tuples(st.sampled_from(TAGS), st.lists(inner, max_size=4)).map(lambda pair: [pair[0], *pair[1]]),
        st.lists(inner, max_size=4),
        st.dictionaries(st.text(max_size=3), inner, max_size=3),
    ),
    max_leaves=15,
)


@settings(deadline=None, max_examples=400)
@given(nodes)
def test_any_json_is_taken_or_refused(node):
    node = json.loads(json.dumps(node))
    with suppress(DynaQuantError):
        leaf_names(node)
    with suppress(DynaQuantError):
        unpack(node)
    with suppress(DynaQuantError):
        unflatten(node, lambda name: torch.zeros(4, dtype=torch.uint8))
