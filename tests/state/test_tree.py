"""A state that goes through JSON and back is the state that went in."""

from __future__ import annotations

import json
from collections import OrderedDict, defaultdict
from decimal import Decimal
from enum import IntEnum
from typing import NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given, settings

from dynaquant_core.errors import UnsupportedStateError
from dynaquant_core.state import flatten, leaf_names, pack, unflatten, unpack
from dynaquant_core.state.strides import memory_order
from tests.state.trees import same, states


def through_json(state):
    tree = flatten(state)
    skeleton = json.loads(json.dumps(tree.skeleton, allow_nan=False))
    tensors = {leaf.name: leaf.tensor for leaf in tree.leaves}
    assert leaf_names(skeleton) == list(tensors)
    return unflatten(skeleton, tensors.__getitem__)


@settings(deadline=None, max_examples=300)
@given(states)
def test_round_trip(state):
    assert same(through_json(state), state)


@settings(deadline=None, max_examples=100)
@given(states)
def test_names_are_unique_and_the_same_every_time(state):
    names = [leaf.name for leaf in flatten(state).leaves]
    assert len(set(names)) == len(names)
    assert all(names)
    assert names == [leaf.name for leaf in flatten(state).leaves]


def test_keys_keep_their_order_and_type():
    state = {"b": 1, 2: "x", "2": "y", -7: None, 2**80: 0}
    assert list(through_json(state).items()) == list(state.items())


def test_tied_tensors_are_one_leaf_and_one_object_again():
    weight = torch.randn(4, 3)
    array = np.arange(6.0)
    view = weight[:2]
    state = {
        "wte": weight,
        "head": weight,
        "detached": weight.detach(),
        "view": view,
        "a": array,
        "b": [array],
    }
    tree = flatten(state)
    assert [leaf.name for leaf in tree.leaves] == ["wte", "view", "a"]
    back = through_json(state)
    assert back["wte"] is back["head"] is back["detached"]
    assert back["view"] is not back["wte"]
    assert back["a"] is back["b"][0]


@pytest.mark.parametrize("shape", [(4, 3, 5, 2), (4, 3, 1, 1), (4, 1, 5, 2)])
def test_memory_runs_as_it_did(shape):
    """Channels last, transposed: fused optimizers walk a parameter and its moments through memory."""
    last, plain = torch.randn(shape).to(memory_format=torch.channels_last), torch.randn(shape)
    turned = torch.randn(3, 7).t()
    state = {"last": last, "tied": last, "turned": turned, "plain": plain, "gaps": plain[..., :1]}
    back = through_json(state)
    assert same(back, state)
    assert back["tied"] is back["last"]
    for name in ("last", "turned", "plain"):
        assert memory_order(back[name]) == memory_order(state[name])


def test_views_that_differ_are_not_tied():
    weight = torch.arange(16.0).reshape(4, 4)
    state = {"w": weight, "t": weight.t(), "bits": weight.view(torch.int32), "row": weight[1:]}
    assert len(flatten(state).leaves) == 4
    assert same(through_json(state), state)


def test_two_empty_tensors_are_not_tied():
    back = through_json([torch.empty(0), torch.empty(0), torch.empty(0, 3)])
    assert back[0] is not back[1]


def test_conjugated_and_negated_views_keep_their_values():
    z = torch.tensor([1 + 2j, 3 - 4j])
    back = through_json({"z": z, "conj": z.conj(), "neg": z.conj().imag})
    assert back["conj"].tolist() == [1 - 2j, 3 + 4j]
    assert back["neg"].tolist() == [-2.0, 4.0]


def test_leaves_share_the_memory_of_the_state():
    layer = torch.nn.Linear(3, 2)
    array = np.zeros(3, np.float32)
    tree = flatten({"model": layer.state_dict(), "array": array})
    for leaf in tree.leaves:
        leaf.tensor.fill_(7.0)
    assert layer.weight.eq(7.0).all()
    assert (array == 7.0).all()


def test_arrays_that_torch_cannot_stand_on():
    frozen = np.arange(3.0)
    frozen.flags.writeable = False
    packed = np.zeros(3, [("a", "u1"), ("b", "<f4")])["b"]
    state = [
        np.arange(6)[::-1],
        frozen,
        packed,
        np.broadcast_to(np.float32(2), (3,)),
        np.arange(12).reshape(3, 4).T,
    ]
    assert same(through_json(state), state)


def test_parameters_and_state_dicts_come_back_as_tensors_in_order():
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.BatchNorm1d(2))
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.randn(4, 2)).sum().backward()
    optimizer.step()
    back = through_json(
        {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "p": model[0].weight}
    )
    assert type(back["model"]) is OrderedDict
    model.load_state_dict(back["model"])
    optimizer.load_state_dict(back["optimizer"])
    assert type(back["p"]) is torch.Tensor
    assert not back["p"].requires_grad


def test_every_rng_state_survives():
    import random

    state = {"python": random.getstate(), "numpy": np.random.get_state(), "torch": torch.get_rng_state()}  # noqa: NPY002
    back = through_json(state)
    random.setstate(back["python"])
    assert same(back["numpy"], state["numpy"])
    assert torch.equal(back["torch"], state["torch"])


def test_pack_takes_everything_but_leaves():
    value = {"history": [float("nan"), 1.5] * 300, "blob": b"x" * 2000, "point": (1, None)}
    assert same(unpack(json.loads(json.dumps(pack(value)))), value)
    with pytest.raises(UnsupportedStateError, match="'w'"):
        pack({"w": torch.zeros(1)})


class Colour(IntEnum):
    RED = 1


class Point(NamedTuple):
    x: int
    y: int


looped: list = []
looped.append(looped)


def freed():
    tensor = torch.ones(2)
    tensor.untyped_storage().resize_(0)  # as sharding frees what it has gathered
    return tensor


UNSUPPORTED = [
    {1, 2},
    object(),
    Decimal(1),
    Colour.RED,
    Point(1, 2),
    defaultdict(list),
    bytearray(b"x"),
    print,
    looped,
    {1.5: 0},
    {True: 0},
    {(1, 2): 0},
    np.array([object()]),
    np.zeros(2, [("a", "f4")]),
    np.ma.masked_array([1]),
    np.void(b"ab"),
    torch.eye(3).to_sparse(),
    torch.empty(2, device="meta"),
    freed(),
    torch.qint8,
    torch.nn.Linear(1, 1),
    {"k" * 2000: torch.zeros(1)},
]


@pytest.mark.parametrize("thing", UNSUPPORTED, ids=lambda thing: type(thing).__name__)
def test_unsupported_objects_are_refused_with_their_path(thing):
    with pytest.raises(UnsupportedStateError, match=r"extra\.7"):
        flatten({"fine": 1, "extra": {7: thing}})
