"""What a checkpoint cannot hold is split off and comes back in its place."""

from __future__ import annotations

import argparse
import enum
import itertools
from collections import Counter, OrderedDict, defaultdict
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import distributed, nn

from dynaquant_core.errors import CorruptFileError, StorageError, UnsupportedStateError
from dynaquant_core.plugins import PluginOptions, PluginRun, read_tree
from dynaquant_core.plugins.rest import read_rest, split
from dynaquant_core.state import flatten
from tests.gloo import leave
from tests.packed import PackedMomentum
from tests.plugins.kit import Gauge, is_same
from tests.training.models import Net, evaluate_net, net_loss, one_step


class Colour(enum.Enum):
    RED = 1


class Pair(NamedTuple):
    left: int
    right: int


class Settings(dict):
    """As frameworks keep hyper-parameters."""

    note = None


def there_and_back(tree, tmp_path, *, weights_only=False):
    """Through the tree that a checkpoint holds, and the file beside it."""
    plain, rest = split(tree)
    flatten(plain)
    path = tmp_path / "rest.pt"
    path.write_bytes(rest.as_bytes())
    return read_rest(path, weights_only=weights_only).into(plain)


def test_objects_of_all_kinds(tmp_path):
    weight = nn.Parameter(torch.randn(3, 3))
    tree = OrderedDict(
        first={"set": {1, 2}, "enum": Colour.RED, "deep": [1, (2, [Gauge(3), "text"], None)]},
        names=argparse.Namespace(lr=0.1),
        pair=Pair(1, 2),
        counter=Counter("aab"),
        time=datetime(2024, 1, 1, tzinfo=timezone.utc),
        array=np.array([None, "x"], dtype=object),
        masked=np.ma.masked_array([1, 2], mask=[True, False]),
        sparse=torch.eye(3).to_sparse(),
        keys={(1, 2): "tuple", None: 3},
        plain=[1, 2.5, "three", None, True, b"bytes", timedelta(seconds=3)],
        weight=weight,
        last=Gauge(7),
    )
    kinds = {key: type(value) for key, value in tree.items()}
    found = there_and_back(tree, tmp_path)
    assert list(found) == list(tree)
    assert type(found) is OrderedDict
    for key in set(tree) - {"array", "masked", "sparse", "weight"}:
        assert found[key] == tree[key], key
        assert type(found[key]) is kinds[key]
    assert found["sparse"].is_sparse
    assert found["array"].tolist() == [None, "x"]
    assert found["masked"].mask.tolist() == [True, False]
    assert found["weight"] is weight  # not copied
    assert type(found["plain"][6]) is timedelta


def test_nothing_is_split_off_a_state_that_a_checkpoint_holds():
    tree = {"w": torch.ones(2), "a": np.arange(3), "n": [1, (2.0, None)], 3: "x", "big": [0.5] * 1000}
    plain, rest = split(tree)
    assert not rest
    assert plain == tree


def test_the_state_itself_is_not_changed():
    gauge = Gauge(1)
    tree = {"a": [gauge, (gauge,)], "b": defaultdict(list, w=torch.ones(2))}
    split(tree)
    assert tree["a"] == [gauge, (gauge,)]
    assert type(tree["b"]) is defaultdict
    assert list(tree["b"]) == ["w"]


def test_tensors_in_dictionaries_of_a_class_of_their_own_stay_in_the_tree(tmp_path):
    inner = Settings(weight=torch.ones(2, 2), gauge=Gauge(1))
    inner.note = "kept"
    tree = {"state": defaultdict(dict, {0: {"exp_avg": torch.ones(4), "inner": inner}})}
    plain, rest = split(tree)
    assert {leaf.name for leaf in flatten(plain).leaves} == {"state.0.exp_avg", "state.0.inner.weight"}
    assert len(rest.as_bytes()) < 3000
    found = there_and_back(tree, tmp_path)["state"]
    assert type(found) is defaultdict
    assert found.default_factory is dict
    assert type(found[0]["inner"]) is Settings
    assert found[0]["inner"].note == "kept"
    assert list(found[0]["inner"]) == ["weight", "gauge"]


def test_the_root_may_be_anything(tmp_path):
    assert there_and_back(Gauge(5), tmp_path) == Gauge(5)
    assert there_and_back((Gauge(5), 1), tmp_path) == (Gauge(5), 1)


def test_reading_without_running_code(tmp_path):
    assert there_and_back({"a": {(1, 2): 3}}, tmp_path, weights_only=True) == {"a": {(1, 2): 3}}
    with pytest.raises(UnsupportedStateError, match=r"kit\.Gauge.*weights_only=False"):
        there_and_back({"a": Gauge(1)}, tmp_path, weights_only=True)


@pytest.mark.parametrize("damage", [b"", b"text", b"PK\x03\x04 half a zip"])
def test_a_damaged_file(tmp_path, damage):
    path = tmp_path / "rest.pt"
    path.write_bytes(damage)
    for weights_only in (True, False):
        with pytest.raises(CorruptFileError, match=r"rest\.pt"):
            read_rest(path, weights_only=weights_only)
    with pytest.raises(StorageError):
        read_rest(tmp_path / "nowhere.pt")


def test_a_container_that_holds_itself_is_refused():
    tree = []
    tree.append(tree)
    with pytest.raises(UnsupportedStateError, match="holds itself"):
        flatten(split(tree)[0])


def test_one_ranks_share_of_a_tensor_is_refused(tmp_path):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Shard

    distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/ranks", rank=0, world_size=1)
    try:
        # Nothing is sent: torch 2.7 may wait for ever where a group goes whose thread still holds what was.
        shared = DTensor.from_local(
            torch.ones(4, 4), init_device_mesh("cpu", (1,)), [Shard(0)], run_check=False
        )
        with pytest.raises(UnsupportedStateError, match="DTensor"):
            split({"model": {"weight": shared}})
    finally:
        leave()


LEAVES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.text(max_size=3),
    st.builds(Gauge, st.integers(0, 9)),
    st.frozensets(st.integers(0, 3)),
    st.just(Colour.RED),
    st.complex_numbers(allow_nan=False, max_magnitude=9),
)
TREES = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=3).map(tuple),
        st.dictionaries(
            st.one_of(st.text(max_size=2), st.integers(), st.tuples(st.integers())), inner, max_size=3
        ),
        st.dictionaries(st.text(max_size=2), inner, max_size=3).map(OrderedDict),
    ),
    max_leaves=12,
)
NUMBERS = itertools.count()


@settings(max_examples=60, deadline=None)
@given(tree=TREES)
def test_any_tree_comes_back(tree, tmp_path_factory):
    folder = Path(tmp_path_factory.getbasetemp()) / f"rest-{next(NUMBERS)}"
    folder.mkdir()
    assert is_same(there_and_back(tree, folder), tree)


@pytest.mark.parametrize("method", ["lattice", "dynaquant", "excp"])
def test_an_optimizer_whose_averages_take_no_part_in_arithmetic_is_saved_and_restored(tmp_path, method):
    model = Net()
    optimizer = PackedMomentum(model.parameters())
    run = PluginRun(PluginOptions(method=method, threshold=0.5, evaluate=evaluate_net), framework="none")
    run.watch(model, [optimizer])
    for step in (1, 2):
        one_step(model, optimizer, net_loss)
        run.save(
            tmp_path / str(step), step, {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
        )
    assert run.wait().step == 2
    run.close()
    other = PackedMomentum(Net().parameters())
    other.load_state_dict(read_tree(tmp_path / "2")["optimizer"])
    assert is_same(other.values(), optimizer.values())
