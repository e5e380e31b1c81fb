"""Moments in 8 bits: error bounded, signs kept, second moments never zero."""

from __future__ import annotations

import random
from contextlib import suppress

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dynaquant_core.errors import ConfigError, CorruptFileError, DynaQuantError, MissingBaseError
from dynaquant_core.methods import Hints
from dynaquant_core.methods.base import Method, Reference
from dynaquant_core.methods.exact import Exact
from dynaquant_core.methods.fixed import NoConfig
from dynaquant_core.methods.moments import LogBlocks, moments_method
from dynaquant_core.state import assign_roles, flatten
from tests.methods.memory import Memory

BLOCKS = LogBlocks()


def adam_moments(dtype=torch.float32):
    """The moments of a small model after a few steps of Adam; named as in a state."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(64, 300), torch.nn.ReLU(), torch.nn.Linear(300, 64)).to(dtype)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for _ in range(5):
        inputs = torch.randn(32, 64, dtype=dtype)
        loss = (model(inputs) - inputs).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    tree = flatten({"optimizer": optimizer.state_dict()})
    roles = assign_roles(tree.leaves)
    return {leaf.name: leaf.tensor for leaf in tree.leaves if roles[leaf.name] == "moment"}


def write(state, ref=None):
    draft = BLOCKS.draft(state, ref, NoConfig(), Hints())
    draft.detach()
    streams, writer_ref = draft.encode()
    return Memory(state, streams), writer_ref


def accepted(state):
    return {name: tensor for name, tensor in state.items() if BLOCKS.accepts(tensor)}


def assert_close(found, state):
    assert list(found) == list(state)
    for name, tensor in state.items():
        exact, got = tensor.double(), found[name].double()
        assert found[name].dtype == tensor.dtype
        assert found[name].shape == tensor.shape
        largest = exact.abs().max()
        signed = bool((exact < 0).any())
        kept = exact.abs() > largest * 2**-15 if signed else exact > 0
        near = 0.055 if signed else 0.096  # the nearest step, or one of the two around
        assert ((got - exact).abs()[kept] <= near * exact.abs()[kept]).all()
        assert (got.sign()[kept] == exact.sign()[kept]).all()
        assert (got[exact == 0] == 0).all()


def test_protocol():
    assert isinstance(BLOCKS, Method)
    assert BLOCKS.owns == {"moment"}
    assert isinstance(write({"m": torch.ones(300)})[1], Reference)
    assert isinstance(moments_method("8bit"), LogBlocks)
    assert isinstance(moments_method("exact"), Exact)
    with pytest.raises(ConfigError, match="moments"):
        moments_method("4bit")


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_real_moments(dtype):
    state = accepted(adam_moments(dtype))
    assert len(state) == 6
    source, _ = write(state)
    assert_close(BLOCKS.decode(source, None).state(), state)
    elements = sum(tensor.numel() for tensor in state.values())
    assert source.nbytes < 0.95 * elements


def test_second_moments_stay_positive():
    moments = torch.rand(40, 300) ** 12 * 1e-8
    moments[0, :50] = 0
    found = BLOCKS.decode(write({"v": moments})[0], None).state()["v"]
    assert ((found > 0) == (moments > 0)).all()
    assert (found >= 0).all()


@settings(deadline=None, max_examples=60)
@given(st.integers(256, 1500), st.integers(0, 2**32), st.sampled_from([1.0, 8.0]), st.booleans())
def test_any_moments(size, seed, spread, signed):
    generator = torch.Generator().manual_seed(seed)
    values = torch.exp(spread * torch.randn(size, generator=generator, dtype=torch.float64)).float()
    if signed:
        values *= torch.randn(size, generator=generator).sign()
    state = {"m": values}
    found = BLOCKS.decode(write(state)[0], None).state()["m"]
    assert (found.sign() * values.sign() >= 0).all()
    if not signed:
        assert (found > 0).all()
    again = BLOCKS.decode(write({"m": found})[0], None).state()["m"]
    assert torch.equal(again, found)


def test_what_is_not_accepted():
    good = torch.rand(300)
    assert BLOCKS.accepts(good)
    bad = good.clone()
    bad[7] = float("nan")
    refused = [
        bad,
        good[:255],
        torch.tensor(1.0),
        good.to(torch.complex64),
        torch.ones(300, dtype=torch.int64),
    ]
    refused += [good.double() * 1e300, good / 0.0, good.to(torch.float8_e5m2)]
    for tensor in refused:
        assert not BLOCKS.accepts(tensor)


def test_decoded_is_what_a_reader_gets():
    state = accepted(adam_moments())
    draft = BLOCKS.draft(state, None, NoConfig(), Hints())
    seen = {name: tensor.clone() for name, tensor in draft.decoded}
    size = draft.size
    source = Memory(state, draft.encode()[0])
    found = BLOCKS.decode(source, None).state()
    assert all(torch.equal(seen[name], found[name]) for name in state)
    assert source.nbytes == size


@pytest.mark.parametrize("order", [("size", "detach"), ("detach", "size"), ("detach", "detach", "size")])
def test_size_and_detach_in_any_order(order):
    state = accepted(adam_moments())
    draft = BLOCKS.draft(state, None, NoConfig(), Hints())
    for step in order:
        draft.detach() if step == "detach" else draft.size
    size = draft.size
    source = Memory(state, draft.encode()[0])
    assert source.nbytes == size
    assert source.rows == write(state)[0].rows


def test_the_state_may_change_after_detach():
    state = accepted(adam_moments())
    draft = BLOCKS.draft(state, None, NoConfig(), Hints())
    draft.detach()
    for tensor in state.values():
        tensor.fill_(1.0)
    assert_close(BLOCKS.decode(Memory(state, draft.encode()[0]), None).state(), accepted(adam_moments()))


def test_what_did_not_change_costs_nothing_and_is_found_in_the_base():
    first = accepted(adam_moments())
    names = list(first)
    second = {name: tensor.clone() for name, tensor in first.items()}
    second[names[0]] *= 2
    key, ref = write(first)
    delta, again = write(second, ref)
    assert delta.nbytes < 0.6 * key.nbytes
    held = BLOCKS.decode(delta, BLOCKS.decode(key, None))
    assert_close(held.state(), second)
    nothing, _ = write(second, again)
    assert nothing.nbytes < 20
    assert_close(BLOCKS.decode(nothing, held).state(), second)
    with pytest.raises(MissingBaseError):
        BLOCKS.decode(delta, None)


def test_the_writer_holds_no_codes():
    _, ref = write(accepted(adam_moments()))
    with pytest.raises(MissingBaseError):
        ref.state()
    assert not ref.coded


def test_names_restrict_what_is_read():
    state = accepted(adam_moments())
    names = list(state)[1:3]
    source, _ = write(state)
    found = BLOCKS.decode(source, None, names)
    assert [name for name, _ in found.items()] == names
    assert_close(found.state(), {name: state[name] for name in names})
    large = [name for name, tensor in state.items() if tensor.numel() > 16384 and name not in names]
    assert large
    assert not any((name, "codes") in source.read for name in large)


def test_hostile_streams_are_refused_or_right_in_shape():
    state = accepted(adam_moments())
    source, _ = write(state)
    generator = random.Random(0)
    for key, (codec, payload) in source.rows.items():
        for _ in range(40):
            damaged = bytearray(payload)
            damaged[generator.randrange(len(damaged))] ^= 1 << generator.randrange(8)
            with suppress(DynaQuantError):
                for name, tensor in BLOCKS.decode(source.with_row(key, codec, bytes(damaged)), None).items():
                    assert tensor.shape == state[name].shape
        with pytest.raises(CorruptFileError):
            BLOCKS.decode(source.without(key), None)
