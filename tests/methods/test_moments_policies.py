"""The policies that keep less than 8 bits: one set of checks for all."""

from __future__ import annotations

import random
from contextlib import suppress

import pytest
import torch

from dynaquant_core.errors import CorruptFileError, DynaQuantError, MissingBaseError
from dynaquant_core.methods import Hints
from dynaquant_core.methods.base import Method, Reference
from dynaquant_core.methods.fixed import NoConfig
from dynaquant_core.methods.moments import moments_method
from dynaquant_core.state import words_of
from tests.methods.memory import Memory
from tests.methods.moment_states import POLICIES, chain, write

#: Bytes that a pair of moments of the test's model may take.
BYTES_A_PAIR = {"compact": 0.95, "minimal": 0.3, "sparse": 0.12, "second": 0.05, "none": 0.01}


@pytest.fixture(scope="module")
def states():
    return chain()


@pytest.fixture(params=POLICIES)
def policy(request):
    return moments_method(request.param)


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
