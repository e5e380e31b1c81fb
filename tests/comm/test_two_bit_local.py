"""Replicas in one process, one rank alone, layouts, and states for another number of ranks."""

from __future__ import annotations

import copy
import logging
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import distributed, nn

from dynaquant_core.comm import two_bit
from dynaquant_core.comm.two_bit.layout import Layout
from dynaquant_core.comm.two_bit.wire import Plan
from dynaquant_core.errors import ConfigError, StateMismatchError, UnsupportedStateError
from tests.comm.products import BELOW, BY_NAME, SIZES, Products, gradients, told, wrapped
from tests.comm.test_two_bit_ranks import residuals, senders, step_all
from tests.gloo import leave

EXAMPLES = settings(max_examples=60, deadline=None)


def give(net, values):
    for name, value in values.items():
        net.get_parameter(name).grad = value.clone()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("by_name", [False, True])
@pytest.mark.parametrize("reduce", ["mean", "sum"])
def test_local_replicas_equal_the_reference(reduce, by_name, dtype):
    nets = [Products(dtype) for _ in range(3)]
    options = (BY_NAME, BELOW) if by_name else (0.5,)
    reducer = two_bit.LocalReducer(nets, *options, reduce=reduce)
    of = senders(3, by_name)
    for step in range(5):
        own = [gradients(rank, step, dtype) for rank in range(3)]
        for net, values in zip(nets, own, strict=True):
            give(net, values)
        reducer.reduce()
        expected = step_all(of, own, reduce, dtype)
        assert all(told(net) == expected for net in nets)
    for rank, held in enumerate(reducer.state_dict()["replicas"]):
        found = {name: item["residual"].flatten().tolist() for name, item in held.items()}
        assert found == residuals(of, rank)


def test_local_warm_up_is_dense_and_missing_gradients_send_nothing():
    nets = [Products() for _ in range(2)]
    reducer = two_bit.LocalReducer(nets, warmup=1)
    for net, rank in zip(nets, range(2), strict=True):
        give(net, gradients(rank, 0))
    reducer.reduce()
    mean = {name: (gradients(0, 0)[name] + gradients(1, 0)[name]) / 2 for name in SIZES}
    assert all(torch.equal(nets[0].get_parameter(name).grad, mean[name]) for name in SIZES)
    for net in nets:
        net.zero_grad()
    nets[1].a.grad = torch.full((17,), 2.0)
    reducer.reduce()
    assert nets[0].a.grad.tolist() == [0.25] * 17  # 0.5 of one of two replicas
    assert nets[0].b.grad is None
    held = reducer.state_dict()["replicas"]
    assert float(held[0]["a"]["residual"].abs().max()) == 0.0
    assert held[1]["a"]["residual"].tolist() == [1.5] * 17
    assert reducer.step == 2


def test_a_local_state_moves_to_another_reducer():
    def steps(reducer, nets, which):
        for step in which:
            for rank, net in enumerate(nets):
                give(net, gradients(rank, step))
            reducer.reduce()
        return told(nets[0])

    straight, stopped, fresh = ([Products() for _ in range(2)] for _ in range(3))
    expected = steps(two_bit.LocalReducer(straight), straight, range(6))
    first, second = two_bit.LocalReducer(stopped), two_bit.LocalReducer(fresh)
    steps(first, stopped, range(3))
    second.load_state_dict(first.state_dict())
    assert steps(second, fresh, range(3, 6)) == expected
    for wrong in ({}, None, {"step": 1, "replicas": first.state_dict()["replicas"][:1]}):
        with pytest.raises(StateMismatchError, match="2 replicas"):
            second.load_state_dict(wrong)
    poisoned = {
        "step": 1,
        "replicas": [{n: {"residual": torch.full(s, torch.nan)} for n, s in SIZES.items()}] * 2,
    }
    with pytest.raises(StateMismatchError, match="not finite"):
        second.load_state_dict(poisoned)


def test_names_that_wrappers_share_are_told_apart():
    """ "weight" and "module.weight" are two parameters, though "module" is what wrappers are called."""

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.zeros(2))
            self.module = nn.Linear(2, 1)

    nets = [Net(), Net()]
    for net, value in zip(nets, (1.0, 2.0), strict=True):
        for parameter in net.parameters():
            parameter.grad = torch.full_like(parameter, value)
    two_bit.LocalReducer(nets, threshold=0.5, reduce="sum").reduce()
    assert all(float(item.grad.max()) == 1.0 for net in nets for item in net.parameters())


def test_replicas_that_do_not_fit():
    with pytest.raises(ConfigError, match="two replicas or more"):
        two_bit.LocalReducer([Products()])
    with pytest.raises(ConfigError, match=r"replica 1 differs from the first in bias, weight"):
        two_bit.LocalReducer([nn.Linear(2, 2), nn.Linear(2, 3)])
    with pytest.raises(ConfigError, match="no parameter that is trained"):
        two_bit.LocalReducer([nn.ReLU(), nn.ReLU()])
    with pytest.raises(UnsupportedStateError, match="parameter 'weight'"):
        two_bit.LocalReducer([nn.Linear(2, 2, dtype=torch.complex64) for _ in range(2)])
    with pytest.raises(ConfigError, match="one module is given as two replicas"):
        two_bit.LocalReducer([nn.Linear(2, 2)] * 2)


def test_a_sparse_gradient_is_refused_before_anything_changes():
    nets = [nn.Embedding(4, 2, sparse=True) for _ in range(2)]
    reducer = two_bit.LocalReducer(nets)
    for net in nets:
        net(torch.tensor([1])).sum().backward()
    with pytest.raises(UnsupportedStateError, match=r"'weight'.*sparse"):
        reducer.reduce()
    assert nets[0].weight.grad.is_sparse
    assert float(reducer.state_dict()["replicas"][0]["weight"]["residual"].abs().max()) == 0.0


@pytest.fixture
def one_rank():
    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    yield
    leave()


def test_one_rank_compresses_as_any_other(one_rank, caplog):
    model = wrapped()
    with caplog.at_level(logging.WARNING):
        state = two_bit.register(model)
    assert "no byte is saved" in caplog.text
    of = senders(1)
    for step in range(4):
        model.zero_grad()
        model(gradients(0, step)).backward()
        assert told(model.module) == step_all(of, [gradients(0, step)], "mean")
    assert state.residual("c").flatten().tolist() == of["c"][0].residual


@pytest.mark.parametrize("step", ["x", -1, None, 1.5])
def test_a_replicas_state_whose_step_is_none_is_refused_whole(step):
    reducer = two_bit.LocalReducer([nn.Linear(2, 2), nn.Linear(2, 2)])
    state = copy.deepcopy(reducer.state_dict()) | {"step": step}
    state["replicas"][0]["weight"]["residual"].fill_(1)
    with pytest.raises(StateMismatchError, match="stored state is of step"):
        reducer.load_state_dict(state)
    assert not reducer.state_dict()["replicas"][0]["weight"]["residual"].any()
    assert reducer.step == 0


@pytest.mark.parametrize("model", [None, nn.Linear(2, 2)])
def test_models_that_are_not_parallel(model):
    with pytest.raises(ConfigError, match="DistributedDataParallel"):
        two_bit.register(model)


def test_complex_parameters_are_refused_and_leave_the_model_free(one_rank):
    model = nn.parallel.DistributedDataParallel(nn.Linear(2, 2, dtype=torch.complex64))
    with pytest.raises(UnsupportedStateError, match="parameter 'weight'"):
        two_bit.register(model)
    assert model._comm_hooks == []


TENSORS = st.lists(st.tuples(st.integers(0, 90), st.sampled_from([(0.5, 0.5), (0.1, 0.3)])), max_size=8)


@EXAMPLES
@given(TENSORS, st.integers(1, 5), st.integers(0, 3))
def test_shards_together_are_the_whole(tensors, parts, seed):
    """Encoded in shards or whole, the residual, the bytes and the sums are the same."""
    layout = Layout.of(tensors)
    assert layout.count == sum(count for count, _ in tensors)
    shards = layout.cut(parts)
    assert len(shards) == parts
    assert sum(shard.count for shard in shards) == layout.count
    assert max(shard.bytes for shard in shards) <= layout.bytes / parts + 4
    gradient = torch.randn(layout.count, generator=torch.Generator().manual_seed(seed))
    whole, pieces = torch.zeros(2, layout.count)
    packed, at, seen, decoded = layout.encode(whole, gradient), 0, [], []
    for shard in shards:
        part = slice(at, at + shard.count)
        seen.append(shard.encode(pieces[part], gradient[part]))
        decoded.append(shard.decode_sum(seen[-1].expand(3, -1), 3.0))
        at = part.stop
    assert torch.equal(whole, pieces)
    assert torch.equal(torch.cat(seen), packed)
    assert torch.equal(torch.cat(decoded), layout.decode_sum(packed.expand(3, -1), 3.0))


def test_a_plan_survives_its_journey():
    chosen = two_bit.TwoBitSettings(threshold=BY_NAME, negative_threshold=BELOW, warmup=3)
    limits = chosen.limits(SIZES)
    plan = Plan(chosen, {name: (shape, limits[name]) for name, shape in SIZES.items()})
    assert Plan.from_bytes(plan.as_bytes()) == plan


@pytest.mark.parametrize("reduce", ["mean", "sum"])
@pytest.mark.parametrize("ranks", [1, 3, 8])
def test_what_is_still_to_come_survives_another_number_of_ranks(reduce, ranks):
    draw = torch.Generator().manual_seed(0)
    states = [
        {
            "rank": rank,
            "ranks": 4,
            "step": 9,
            "parameters": {"w": {"residual": torch.randn(2, 3, generator=draw)}},
        }
        for rank in range(4)
    ]
    found = two_bit.redistribute(states, ranks, reduce)
    assert [(state["rank"], state["ranks"], state["step"]) for state in found] == [
        (r, ranks, 9) for r in range(ranks)
    ]

    def to_come(of):
        total = sum(state["parameters"]["w"]["residual"].double() for state in of)
        return total / len(of) if reduce == "mean" else total

    assert torch.allclose(to_come(found), to_come(states), atol=1e-6)
    for wrong in (states[:3], states[::-1], [*states[:3], {**states[3], "step": 8}], []):
        with pytest.raises(StateMismatchError):
            two_bit.redistribute(wrong, ranks, reduce)
    with pytest.raises(ConfigError):
        two_bit.redistribute(states, 0)
    told = [{**state, "reduce": reduce} for state in states]  # as states of today do
    weights = [state["parameters"]["w"]["residual"] for state in two_bit.redistribute(told, ranks)]
    assert all(torch.equal(own, found[0]["parameters"]["w"]["residual"]) for own in weights)
    assert math.isfinite(float(found[0]["parameters"]["w"]["residual"].sum()))
