"""The policies that keep less than 8 bits: what each promises."""

from __future__ import annotations

import logging

import pytest
import torch

from dynaquant_core.errors import ConfigError
from dynaquant_core.methods.moments import moments_method
from tests.methods.moment_states import POLICIES, chain, write


@pytest.fixture(scope="module")
def states():
    return chain()


@pytest.fixture(params=POLICIES)
def policy(request):
    return moments_method(request.param)


def kinds(state, suffix):
    return [name for name in state if name.endswith(suffix)]


def round_trip(name, state):
    policy = moments_method(name)
    return policy.decode(write(policy, state)[0], None).state()


def test_compact_is_within_its_bounds(states):
    found = round_trip("compact", states[-1])
    for name, exact in states[-1].items():
        x, y = exact.double(), found[name].double()
        kept = y != 0
        near = (y - x).abs() <= 0.43 * x.abs()
        assert (near | ~kept | (x < x.max() * 2.0**-14)).all()
        assert (x[~kept].abs() <= x.abs().max() * 0.012).all()


def test_compact_is_smaller_against_its_base(states):
    policy = moments_method("compact")
    _, writer = write(policy, states[4])
    assert write(policy, states[5], writer)[0].nbytes < 0.97 * write(policy, states[5])[0].nbytes


def test_minimal_keeps_the_direction_of_first_moments(states):
    found = round_trip("minimal", states[-1])
    for name in kinds(states[-1], "exp_avg"):
        cosine = torch.nn.functional.cosine_similarity(
            found[name].flatten(), states[-1][name].flatten(), dim=0
        )
        assert cosine > 0.7


def test_sparse_keeps_all_movement_along_first_moments_in_a_few_elements(states):
    found = round_trip("sparse", states[-1])
    for name in kinds(states[-1], "exp_avg"):
        if states[-1][name].dim() == 2:
            exact, coarse = states[-1][name].double(), found[name].double()
            energy = exact.square().sum()
            assert abs((coarse * exact).sum() / energy - 1) < 0.05
            assert (coarse - exact).square().sum() < 16 * energy
            assert 0 < (coarse != 0).double().mean() < 0.1


@pytest.mark.parametrize("name", ["minimal", "sparse", "second"])
def test_second_moments_keep_the_mean_of_their_rows(name, states):
    found = round_trip(name, states[-1])
    for key in kinds(states[-1], "exp_avg_sq"):
        exact = states[-1][key]
        if exact.dim() == 2:
            assert (found[key].mean(1) / exact.mean(1) - 1).abs().max() < 0.12


@pytest.mark.parametrize("name", ["second", "none"])
def test_what_is_dropped_comes_back_as_zeros_and_is_said_once(name, states, caplog):
    policy = moments_method(name)
    with caplog.at_level(logging.WARNING):
        for state in states[:3]:
            found = policy.decode(write(policy, state)[0], None).state()
    for key in kinds(states[0], "exp_avg"):
        assert not found[key].any()
    assert len([record for record in caplog.records if repr(name) in record.getMessage()]) == 1


@pytest.mark.parametrize("name", ["compact", "minimal", "sparse"])
def test_what_keeps_both_moments_says_nothing(name, states, caplog):
    with caplog.at_level(logging.WARNING):
        write(moments_method(name), states[0])
    assert not caplog.records


OPTIMIZERS = {
    "sgd": lambda network: torch.optim.SGD(network.parameters(), lr=0.01, momentum=0.9),
    "amsgrad": lambda network: torch.optim.Adam(network.parameters(), amsgrad=True),
    "rmsprop": lambda network: torch.optim.RMSprop(
        network.parameters(), lr=1e-4, centered=True, momentum=0.9
    ),
    "adagrad": lambda network: torch.optim.Adagrad(network.parameters(), initial_accumulator_value=0.1),
    "adadelta": lambda network: torch.optim.Adadelta(network.parameters()),
    "adamax": lambda network: torch.optim.Adamax(network.parameters()),
}


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_every_optimizer_goes_on_from_what_was_restored(policy, optimizer):
    """The restored state loads, and further steps stay finite: no root of a negative number."""
    from tests.methods.moment_states import model, moments, train

    network = model()
    inner = OPTIMIZERS[optimizer](network)
    train(network, inner, 10)
    state = moments(inner)
    found = policy.decode(write(policy, state)[0], None).state()
    stored = inner.state_dict()
    for name, tensor in found.items():
        number, key = name.split(".")[-2:]
        stored["state"][int(number)][key] = tensor
    inner.load_state_dict(stored)
    train(network, inner, 10, seed=1)
    assert all(parameter.isfinite().all() for parameter in network.parameters())


def test_momentum_of_sgd(states):
    from tests.methods.moment_states import chain

    state = chain(OPTIMIZERS["sgd"], length=1)[0]
    large = [name for name in state if state[name].dim() == 2]
    for name in ("minimal", "sparse"):
        ternary = round_trip(name, state)
        assert all(ternary[key].unique().numel() > 2 for key in large)
    for name in ("second", "none"):
        assert not any(tensor.any() for tensor in round_trip(name, state).values())


def test_names_that_say_nothing_are_kept_in_8_bits(policy):
    values = {"m": torch.randn(40, 50), "v": torch.rand(40, 50)}
    found = policy.decode(write(policy, values)[0], None).state()
    for name, exact in values.items():
        assert ((found[name] - exact).abs() <= 0.096 * exact.abs()).float().mean() > 0.99


def test_a_second_moment_that_is_negative_keeps_its_sign(policy):
    values = {"state.0.exp_avg_sq": torch.randn(40, 50)}
    found = policy.decode(write(policy, values)[0], None).state()["state.0.exp_avg_sq"]
    assert (found.sign() == values["state.0.exp_avg_sq"].sign()).float().mean() > 0.99


@pytest.mark.parametrize("name", ["compakt", "4bit", "minimum", 8, None, ["8bit"]])
def test_unknown_policies_are_config_errors(name):
    with pytest.raises(ConfigError, match="there are no moments"):
        moments_method(name)


def test_the_nearest_policy_is_named():
    with pytest.raises(ConfigError, match="did you mean 'compact'"):
        moments_method("compakt")
