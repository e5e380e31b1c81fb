"""The policies that keep less than 8 bits: one set of checks for all, and what each promises."""

from __future__ import annotations

import logging
import random
from contextlib import suppress

import pytest
import torch

from dynaquant_core.errors import ConfigError, CorruptFileError, DynaQuantError, MissingBaseError
from dynaquant_core.methods import Hints
from dynaquant_core.methods.base import Method, Reference
from dynaquant_core.methods.fixed import NoConfig
from dynaquant_core.methods.moments import moments_method
from dynaquant_core.state import words_of
from tests.methods.memory import Memory
from tests.methods.moment_states import chain

POLICIES = ("compact", "minimal", "sparse", "second", "none")
#: Bytes that a pair of moments of the test's model may take.
BYTES_A_PAIR = {"compact": 0.95, "minimal": 0.3, "sparse": 0.12, "second": 0.05, "none": 0.01}


@pytest.fixture(scope="module")
def states():
    return chain()


@pytest.fixture(params=POLICIES)
def policy(request):
    return moments_method(request.param)


def write(policy, state, ref=None):
    draft = policy.draft(state, ref, NoConfig(), Hints())
    draft.detach()
    streams, writer = draft.encode()
    return Memory(state, streams), writer


def same(left, right):
    return list(left) == list(right) and all(
        (words_of(left[name]) == words_of(right[name])).all() for name in left
    )


def kinds(state, suffix):
    return [name for name in state if name.endswith(suffix)]


def test_protocol(policy, states):
    assert isinstance(policy, Method)
    assert policy.owns == {"moment"}
    assert policy.options() == {}
    source, writer = write(policy, states[0])
    assert isinstance(writer, Reference)
    assert isinstance(policy.decode(source, None), Reference)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_a_chain_of_six(policy, dtype):
    """What a reader of the whole chain gets is what each draft said it would, signs and zeros kept."""
    held = writer = None
    for trained in chain(dtype=torch.float32 if dtype == torch.float16 else dtype):
        state = {name: tensor.to(dtype) for name, tensor in trained.items()}  # Adam itself fails in float16
        promised = dict(policy.draft(state, writer, NoConfig(), Hints()).decoded)
        source, writer = write(policy, state, writer)
        held = policy.decode(source, held)
        found = held.state()
        assert same(found, promised)
        for name, tensor in state.items():
            assert (found[name].dtype, found[name].shape) == (tensor.dtype, tensor.shape)
            assert found[name].isfinite().all()
            assert (found[name].double().sign() * tensor.double().sign() >= 0).all()
        for name in kinds(state, "exp_avg_sq"):
            assert (found[name][state[name] > 0] > 0).all()


def test_a_writer_that_loaded_and_one_that_saved_write_the_same(policy, states):
    first, writer = write(policy, states[0])
    reader = policy.decode(first, None)
    after_save, _ = write(policy, states[1], writer)
    after_load, _ = write(policy, states[1], reader)
    assert after_save.rows == after_load.rows


def test_size_on_real_moments(policy, states):
    pairs = sum(tensor.numel() for tensor in states[0].values()) / 2
    source, _ = write(policy, states[-1])
    assert source.nbytes < BYTES_A_PAIR[policy.name] * pairs


def test_small_tensors_are_taken_and_what_is_none_is_not(policy):
    assert policy.accepts(torch.ones(3))
    bad = torch.ones(300)
    bad[7] = float("nan")
    refused = [bad, torch.tensor(1.0), torch.ones(0), torch.ones(9, dtype=torch.int64)]
    refused += [torch.ones(9, dtype=torch.complex64), torch.full((9,), 1e300, dtype=torch.float64)]
    assert not any(policy.accepts(tensor) for tensor in refused)


@pytest.mark.parametrize("order", [("size", "detach"), ("detach", "size"), ("detach", "detach", "size")])
def test_size_and_detach_in_any_order(policy, states, order):
    draft = policy.draft(states[0], None, NoConfig(), Hints())
    for step in order:
        draft.detach() if step == "detach" else draft.size
    source = Memory(states[0], draft.encode()[0])
    assert source.nbytes == draft.size
    assert source.rows == write(policy, states[0])[0].rows


def test_the_state_may_change_after_detach(policy, states):
    state = {name: tensor.clone() for name, tensor in states[0].items()}
    draft = policy.draft(state, None, NoConfig(), Hints())
    draft.detach()
    for tensor in state.values():
        tensor.fill_(1.0)
    assert Memory(state, draft.encode()[0]).rows == write(policy, states[0])[0].rows


def test_what_did_not_change_costs_nothing_and_is_found_in_the_base(policy, states):
    first = states[0]
    second = {name: tensor.clone() for name, tensor in first.items()}
    moved = next(name for name in first if first[name].dim() > 1)
    second[moved] *= 2
    key, writer = write(policy, first)
    delta, again = write(policy, second, writer)
    nothing, last = write(policy, second, again)
    assert nothing.nbytes < 20
    held = policy.decode(nothing, policy.decode(delta, policy.decode(key, None)))
    assert same(held.state(), policy.decode(write(policy, second)[0], None).state())
    third, _ = write(policy, states[1], last)  # stands on codes that two files before it held
    assert same(policy.decode(third, held).state(), policy.decode(write(policy, states[1])[0], None).state())
    with pytest.raises(MissingBaseError):
        policy.decode(delta, None)


def test_restored_and_saved_again_and_again_nothing_more_is_lost(policy, states):
    """A run that dies before it has trained a step, over and over: signs fitted to signs would fade."""
    source, _ = write(policy, states[0])
    held = policy.decode(source, None)
    once = held.state()
    for _ in range(5):
        source, _ = write(policy, held.state(), held)
        held = policy.decode(source, held)
    assert same(held.state(), once)


def test_the_writer_holds_half_a_byte_a_value_at_most(states):
    for name in POLICIES:
        _, writer = write(moments_method(name), states[0])
        with pytest.raises(MissingBaseError):
            writer.state()
        held = sum(one.pairs.nbytes for one in writer.packed.values())
        assert held <= 0.51 * sum(tensor.numel() for tensor in states[0].values())


def test_names_restrict_what_is_read_along_a_chain(policy, states):
    writer = held = None
    names = list(states[0])[-5:-2]
    for state in states[:3]:
        source, writer = write(policy, state, writer)
        held = policy.decode(source, held, names)
    whole, ref = None, None
    for state in states[:3]:
        source, ref = write(policy, state, ref)
        whole = policy.decode(source, whole)
    assert list(held.state()) == names
    assert same(held.state(), {name: whole.state()[name] for name in names})


def test_rekey_gives_the_same_bits_without_a_base(policy, states):
    writer = held = None
    for state in states[:3]:
        source, writer = write(policy, state, writer)
        held = policy.decode(source, held)
    key = Memory(states[2], policy.rekey(held))
    assert same(policy.decode(key, None).state(), held.state())
    with pytest.raises(MissingBaseError):
        policy.rekey(writer)


def test_hostile_streams_are_refused_or_right_in_shape(policy, states):
    generator = random.Random(0)
    key, writer = write(policy, states[0])
    delta, _ = write(policy, states[1], writer)
    base = policy.decode(key, None)
    for source, ref in ((key, None), (delta, base)):
        for row, (codec, payload) in source.rows.items():
            for _ in range(25):
                damaged = bytearray(payload)
                damaged[generator.randrange(len(damaged))] ^= 1 << generator.randrange(8)
                with suppress(DynaQuantError):
                    for name, tensor in policy.decode(
                        source.with_row(row, codec, bytes(damaged)), ref
                    ).items():
                        assert tensor.shape == states[0][name].shape
                        assert tensor.isfinite().all()
                        assert not name.endswith("_sq") or (tensor >= 0).all()
            with pytest.raises(CorruptFileError):
                policy.decode(source.without(row), ref)


def test_a_base_of_other_shapes_is_refused(states):
    policy = moments_method("compact")
    _, writer = write(policy, states[0])
    delta, _ = write(policy, states[1], writer)
    name = next(name for name in states[0] if states[0][name].numel() > 16384)
    other = {**states[0], name: states[0][name][:, 1:].contiguous()}
    base = policy.decode(write(policy, other)[0], None)
    with pytest.raises(CorruptFileError, match="size of its base"):
        policy.decode(delta, base).state()


def test_threads_do_not_change_a_byte(policy, states, monkeypatch):
    rows = []
    for threads in ("1", "4"):
        monkeypatch.setenv("DYNAQUANT_THREADS", threads)
        rows.append(write(policy, states[0])[0].rows)
    assert rows[0] == rows[1]


# -- what each policy promises -------------------------------------------------------------------


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
        assert cosine > 0.8


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
        assert ((found[name] - exact).abs() <= 0.051 * exact.abs()).float().mean() > 0.99


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
