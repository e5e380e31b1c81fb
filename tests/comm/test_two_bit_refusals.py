"""Wrong arguments of two-bit gradients end in one sentence, not in a traceback from inside."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import distributed, nn

from dynaquant_core.comm import two_bit
from dynaquant_core.errors import ConfigError, StateMismatchError, UnsupportedStateError
from dynaquant_core.memory import samo
from tests.gloo import a_group_of_one, leave


def state(rank, value=0.25, **other):
    """Of rank ``rank`` of 2."""
    weight = {"residual": torch.tensor([value, 0.0])}
    return {"rank": rank, "ranks": 2, "step": 7, "reduce": "mean", "parameters": {"w": weight}} | other


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"reduce": "sum"}, "joined"),
        ({"reduce": ["mean"]}, "joined"),
        ({"parameters": {"w": {"residual": torch.zeros(3)}}}, "same parameters"),
        ({"parameters": {"w": {}}}, "residual of 'w'"),
        ({"parameters": {"w": {"residual": [0.0]}}}, "residual of 'w'"),
        ({"parameters": {"w": {"residual": torch.tensor([torch.nan, 0.0])}}}, "finite"),
        ({"parameters": None}, "residual of 'parameters'"),
    ],
)
def test_states_of_no_one_job_are_not_redistributed(wrong, said):
    with pytest.raises(StateMismatchError, match=said):
        two_bit.redistribute([state(0), state(1, **wrong)], 3)


def test_no_states_and_no_number_of_ranks():
    for wrong in ([], None, (one for one in [state(0), state(1)])):
        with pytest.raises(StateMismatchError):
            two_bit.redistribute(wrong, 1)
    with pytest.raises(StateMismatchError, match="joined"):
        two_bit.redistribute([state(0, reduce="foo"), state(1, reduce="foo")], 1)
    with pytest.raises(ConfigError, match="ranks"):
        two_bit.redistribute([state(0), state(1)], True)


def test_replicas_that_are_none():
    for wrong in (5, nn.Linear(2, 2), [1, 2], (nn.Linear(2, 2) for _ in range(2))):
        with pytest.raises(ConfigError, match="list of modules"):
            two_bit.LocalReducer(wrong)
    with pytest.raises(ConfigError, match="no shape yet"):
        two_bit.LocalReducer([nn.LazyLinear(2), nn.LazyLinear(2)])
    with pytest.raises(UnsupportedStateError, match="complex64"):
        two_bit.LocalReducer([nn.Linear(2, 2), nn.Linear(2, 2, dtype=torch.complex64)])
    two_bit.LocalReducer(nn.ModuleList(nn.Linear(2, 2) for _ in range(2))).reduce()


def test_what_the_first_rank_cannot_give():
    with pytest.raises(ConfigError, match="call init_process_group first"):
        two_bit.from_first_rank(nn.Linear(2, 2))
    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    try:
        with pytest.raises(ConfigError, match="was given nothing"):
            two_bit.from_first_rank()
        with pytest.raises(ConfigError, match="takes modules and optimizers, got dict"):
            two_bit.from_first_rank(nn.Linear(2, 2), {})
        model = nn.Linear(8, 8)
        samo.wrap(model, torch.optim.SGD(model.parameters(), lr=0.1), sparsity=0.5)
        with pytest.raises(ConfigError, match=r"under samo\.wrap"):
            two_bit.from_first_rank(model)
    finally:
        leave()


class Lookahead(torch.optim.Optimizer):
    """As usually written: an optimizer by its class, which never set itself up as one."""

    def __init__(self, inner):
        self.inner, self.param_groups, self.state = inner, inner.param_groups, inner.state

    def step(self, closure=None):
        return self.inner.step(closure)


@pytest.mark.filterwarnings("ignore")  # torch's own, about its functional optimizers
def test_an_optimizer_that_cannot_tell_all_of_its_state_is_one_sentence(tmp_path):
    """Torch's errors came from inside, of shards perhaps on some ranks alone, and the others waited."""
    from torch.distributed.optim import ZeroRedundancyOptimizer  # takes two seconds

    with a_group_of_one(tmp_path):
        model = nn.Linear(2, 2)
        shards = ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW)
        with pytest.raises(
            ConfigError, match=r"ZeroRedundancyOptimizer, which keeps .* give it the model alone"
        ):
            two_bit.from_first_rank(model, shards)
        with pytest.raises(
            ConfigError, match=r"Lookahead could not tell its state \(AttributeError: .*inside it"
        ):
            two_bit.from_first_rank(model, Lookahead(torch.optim.AdamW(model.parameters())))


def test_codes_of_what_is_no_tensor():
    gradient = torch.tensor([0.6, -0.7])
    with pytest.raises(ConfigError, match="gradient is NoneType"):
        two_bit.encode(torch.zeros(2), None, 0.5, 0.5)
    with pytest.raises(ConfigError, match="residual is list"):
        two_bit.encode([0.0, 0.0], gradient, 0.5, 0.5)
    held = torch.zeros(2, requires_grad=True)
    packed = two_bit.encode(held, gradient, 0.5, 0.5)
    assert held.tolist() == pytest.approx([0.1, -0.2])
    for wrong in (
        {"divisor": 0},
        {"divisor": float("nan")},
        {"divisor": "2"},
        {"count": 2.0},
        {"count": "2"},
    ):
        with pytest.raises(ConfigError):
            two_bit.decode_sum(packed[None], **({"count": 2, "above": 0.5, "below": 0.5} | wrong))
    assert two_bit.decode_sum(packed[None], 2, 0.5, 0.5).tolist() == [0.5, -0.5]


def test_states_are_left_as_they_were():
    states = [state(0), state(1, 0.75)]
    before = copy.deepcopy(states)
    (one,) = two_bit.redistribute(states, 1)
    assert one["parameters"]["w"]["residual"].tolist() == [0.5, 0.0]
    assert str(states) == str(before)
