"""Bit for bit, whatever the tensors; what did not change costs nothing."""

from __future__ import annotations

import random
from contextlib import suppress

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dynaquant_core.errors import ConfigError, CorruptFileError, DynaQuantError, MissingBaseError
from dynaquant_core.methods import Hints, TensorSpec, resolve_method
from dynaquant_core.methods.base import Method, Reference
from dynaquant_core.methods.exact import Exact
from dynaquant_core.methods.fixed import NoConfig
from dynaquant_core.methods.pooling import POOL_BYTES
from dynaquant_core.state import tensor_of, words_of
from tests.methods.memory import Memory
from tests.state.trees import same, tensors

EXACT = Exact()


def model_state(seed=0):
    """Large and small tensors of many dtypes."""
    g = torch.Generator().manual_seed(seed)
    return {
        "embedding": torch.randn(300, 64, generator=g),
        "norm.weight": torch.randn(64, generator=g),
        "norm.bias": torch.zeros(64),
        "half": torch.randn(100, 100, generator=g).half(),
        "brain": torch.randn(64, generator=g).bfloat16(),
        "double": torch.randn(60, 60, generator=g).double(),
        "complex": torch.randn(20, 2, generator=g).double().view(torch.complex128),
        "eight": torch.randn(50, generator=g).to(torch.float8_e4m3fn),
        "steps": torch.tensor(7),
        "flags": torch.rand(40, generator=g) > 0.5,
        "empty": torch.empty(0, 5),
        "constant": torch.full((5000,), -0.0),
        "odd": torch.tensor([float("nan"), float("inf"), -0.0, 1e-45]),
    }


def write(state, ref=None, roles=None, method=EXACT, *, detach=True):
    draft = method.draft(state, ref, NoConfig(), Hints(roles=roles or {}))
    if detach:
        draft.detach()
    streams, writer_ref = draft.encode()
    return Memory(state, streams), writer_ref


def assert_same(reference, state):
    found = reference.state()
    assert list(found) == list(state)
    for name in state:
        assert same(found[name], state[name].detach()), name


def test_protocol():
    assert isinstance(EXACT, Method)
    assert resolve_method("exact").accepts(torch.empty(0))
    assert EXACT.config(NoConfig().as_dict()) == EXACT.space(gradients=True).default
    with pytest.raises(ConfigError):
        EXACT.config({"bins": 3})
    with pytest.raises(ConfigError):
        Exact(hold_bytes=-1)
    draft = EXACT.draft({"w": torch.ones(3)}, None, NoConfig(), Hints())
    assert draft.is_key
    assert isinstance(draft.encode()[1], Reference)


@pytest.mark.parametrize("detach", [True, False])
def test_key_round_trip(detach):
    state = model_state()
    source, _ = write(state, detach=detach)
    assert_same(EXACT.decode(source, None), state)


@settings(deadline=None, max_examples=80)
@given(st.lists(tensors(), max_size=6), st.data())
def test_any_tensors_through_a_chain(values, data):
    first = {f"t{i}": value for i, value in enumerate(values)}
    second = {
        name: value if data.draw(st.booleans()) else tensor_of(words_of(value) ^ 1, TensorSpec.of(value))
        for name, value in first.items()
    }
    source, writer_ref = write(first)
    held = EXACT.decode(source, None)
    assert_same(held, first)
    delta, _ = write(second, writer_ref)
    assert_same(EXACT.decode(delta, held), second)


def test_chain_where_some_change():
    first, second = model_state(), model_state()
    second["norm.weight"] = first["norm.weight"] + 1e-7
    second["embedding"] = first["embedding"].clone()
    second["embedding"][3, 5] += 1
    source, writer_ref = write(first)
    delta, _ = write(second, writer_ref)
    held = EXACT.decode(source, None)
    assert_same(EXACT.decode(delta, held), second)
    assert delta.nbytes < source.nbytes / 10
    assert_same(held, first)


def test_what_did_not_change_costs_nothing():
    state = model_state()
    source, ref = write(state)
    delta, again = write({name: tensor.clone() for name, tensor in state.items()}, ref)
    assert list(delta.rows) == [("", "layout")]
    assert delta.nbytes < 20
    third, _ = write(state, again)
    held = EXACT.decode(source, None)
    assert_same(EXACT.decode(third, EXACT.decode(delta, held)), state)


def test_a_large_tensor_is_held_by_digest_only():
    state = {"large": torch.randn(1000, 300), "small": torch.randn(30)}
    method = Exact(hold_bytes=POOL_BYTES)
    source, ref = write(state, method=method)
    assert set(ref.words) == {"small"}
    with pytest.raises(MissingBaseError, match="large"):
        ref.state()
    moved = {"large": state["large"] + 1e-6, "small": state["small"]}
    delta, _ = write(moved, ref, method=method)
    assert_same(method.decode(delta, method.decode(source, None)), moved)
    unchanged, _ = write(state, ref, method=method)
    assert unchanged.nbytes < 20


def test_xor_with_the_base_pays_for_small_movements():
    weight = torch.randn(200, 200)
    moved = weight * (1 + 1e-6)
    key, ref = write({"w": weight})
    delta, _ = write({"w": moved}, ref)
    assert delta.nbytes < 0.8 * write({"w": moved})[0].nbytes
    assert_same(EXACT.decode(delta, EXACT.decode(key, None)), {"w": moved})


def test_a_readers_reference_serves_as_the_writers():
    first, second = model_state(0), model_state(1)
    source, _ = write(first)
    held = EXACT.decode(source, None)
    delta, _ = write(second, held)
    assert_same(EXACT.decode(delta, held), second)
    assert write(first, held)[0].nbytes < 20


def test_small_tensors_share_a_stream_within_their_role():
    state = {f"layer{i}.{name}": torch.randn(32) for i in range(10) for name in ("weight", "bias")}
    state |= {f"state.{i}.step": torch.tensor(5.0) for i in range(10)}
    roles = {name: "exact" if "step" in name else "weight" for name in state}
    source, _ = write(state, roles=roles)
    assert list(source.rows) == [("", "layout"), ("layer0.weight", "pool"), ("state.0.step", "pool")]
    assert source.nbytes < sum(tensor.nbytes for tensor in state.values())
    assert_same(EXACT.decode(source, None), state)


def test_names_restrict_what_is_read():
    first, second = model_state(0), model_state(1)
    second["double"] = first["double"]
    key, ref = write(first)
    delta, _ = write(second, ref)
    names = ["double", "norm.bias", "half"]
    held = EXACT.decode(key, None, names)
    found = EXACT.decode(delta, held, names)
    assert {name for name, _ in found.items()} == set(names)
    for name, tensor in found.items():
        assert same(tensor, second[name])
    assert ("embedding", "values") not in key.read + delta.read


@pytest.mark.parametrize("order", [("size", "detach"), ("detach", "size"), ("detach", "detach", "size")])
def test_size_and_detach_in_any_order(order):
    state = model_state()
    draft = EXACT.draft(state, None, NoConfig(), Hints())
    for step in order:
        draft.detach() if step == "detach" else draft.size
    size = draft.size
    source = Memory(state, draft.encode()[0])
    assert source.nbytes == size
    assert source.rows == write(state)[0].rows


def test_the_state_may_change_after_detach():
    state = model_state()
    before = {name: tensor.clone() for name, tensor in state.items()}
    draft = EXACT.draft(state, None, NoConfig(), Hints())
    draft.detach()
    for tensor in state.values():
        tensor.zero_()
    streams, ref = draft.encode()
    assert_same(EXACT.decode(Memory(before, streams), None), before)
    assert_same(ref, before)


def test_the_size_is_what_is_written():
    state = model_state()
    draft = EXACT.draft(state, None, NoConfig(), Hints())
    size = draft.size
    draft.detach()
    for tensor in state.values():
        tensor.zero_()
    streams, ref = draft.encode()
    source = Memory(state, streams)
    assert source.nbytes == size
    assert_same(EXACT.decode(source, None), model_state())
    assert_same(ref, model_state())


def test_decoded_is_the_live_state():
    state = model_state()
    decoded = dict(EXACT.draft(state, None, NoConfig(), Hints()).decoded)
    assert all(same(decoded[name], tensor) for name, tensor in state.items())


def test_writing_into_a_loaded_state_does_not_touch_the_reference():
    state = {"w": torch.randn(40), "v": torch.randn(9000)}
    source, _ = write(state)
    held = EXACT.decode(source, None)
    for tensor in held.state().values():
        tensor.fill_(9)
    assert_same(held, state)


def test_a_missing_base_is_named():
    state = model_state()
    _, ref = write(state)
    delta, _ = write(state, ref)
    with pytest.raises(MissingBaseError):
        EXACT.decode(delta, None)
    weight = torch.randn(200, 200)
    _, ref = write({"w": weight})
    delta, _ = write({"w": weight * (1 + 1e-6)}, ref)
    with pytest.raises(CorruptFileError):
        EXACT.decode(delta, None)
    other, _ = write({"w": torch.ones(200, 100)})
    with pytest.raises(CorruptFileError):
        EXACT.decode(delta, EXACT.decode(other, None))


def test_hostile_streams_are_refused_or_right_in_shape():
    state = model_state()
    source, _ = write(state)
    generator = random.Random(0)
    for key, (codec, payload) in source.rows.items():
        for _ in range(30):
            damaged = bytearray(payload)
            damaged[generator.randrange(len(damaged))] ^= 1 << generator.randrange(8)
            hostile = source.with_row(
                key, generator.choice([codec, codec, generator.randrange(12)]), bytes(damaged)
            )
            with suppress(DynaQuantError):
                found = EXACT.decode(hostile, None).state()
                assert {name: t.shape for name, t in found.items()} == {
                    name: t.shape for name, t in state.items()
                }


def test_truncated_and_missing_streams():
    source, _ = write(model_state())
    for key, (codec, payload) in source.rows.items():
        for damaged in (b"", payload[:-1], payload + b"\0"):
            with pytest.raises(DynaQuantError):
                EXACT.decode(source.with_row(key, codec, damaged), None)
        with pytest.raises(CorruptFileError):
            EXACT.decode(source.without(key), None)
