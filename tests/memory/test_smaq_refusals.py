"""What SmaQ refuses in one sentence, and what it leaves as it was."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from dynaquant_core.errors import ConfigError, StateMismatchError
from dynaquant_core.memory import smaq


def test_a_lazy_model_is_refused_before_it_is_coded():
    model = nn.Sequential(nn.LazyLinear(64), nn.ReLU())
    with pytest.raises(ConfigError, match=r"'0\.weight' has no shape yet"):
        smaq.apply(model, None, gradients=False, weights=False, optimizer_state=False)
    assert model(torch.randn(64, 32)).shape == (64, 64)


@pytest.mark.parametrize(
    "wrong", [[float("nan"), 1.0, 2], [0.0, float("inf"), 2], [0.0, -1.0, 2], [0.0, "x", 2]]
)
def test_statistics_that_are_no_numbers_are_refused(wrong):
    net = nn.Linear(64, 64)
    with smaq.apply(net, None, gradients=False, weights=False, optimizer_state=False, reuse=2) as handle:
        net(torch.randn(64, 64)).sum().backward()
        state = handle.state_dict()
        with pytest.raises(StateMismatchError, match="nothing was changed"):
            handle.load_state_dict(state | {"statistics": {"saved/0": wrong}})
        handle.load_state_dict(state)


@pytest.mark.parametrize("wrong", ["x", None, 1.5, True, 2**70])
def test_what_is_no_seed_is_refused(wrong):
    net = nn.Linear(64, 64)
    with smaq.apply(net, None, gradients=False, weights=False, optimizer_state=False) as handle:
        with pytest.raises(ConfigError, match="seed"):
            handle.reseed(wrong)
        handle.reseed(-1)


def test_an_optimizer_of_another_model_is_told(caplog):
    """Nothing is refused: a loop may keep copies of the weights and step on them."""
    net, other = nn.Linear(64, 64), nn.Linear(64, 64)
    with smaq.apply(net, torch.optim.SGD(other.parameters(), lr=0.1)):
        assert "none of the 2 parameters of this SGD is one of the model's" in caplog.text
    caplog.clear()
    both = torch.optim.SGD([*net.parameters(), *other.parameters()], lr=0.1)
    with smaq.apply(net, both):
        assert not caplog.text
