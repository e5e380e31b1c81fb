"""What a run that began from a checkpoint relies on: its next restore gives back what it learnt since."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import dynaquant_core as dq
from dynaquant_core.config import DynaQuantOptions
from dynaquant_core.errors import ConfigError, CorruptFileError, MissingBaseError
from dynaquant_core.methods.base import Hints
from dynaquant_core.methods.dynaquant import DynaQuant, sample
from tests.fixtures.make_paper_profile import FIXTURE, digests
from tests.methods.conftest import layers, trained
from tests.methods.streams import StreamTable, hostile

CONFIGS = [
    dq.Config(bins=16),
    dq.Config(bins=8, prune=0.2, protect=0.005),
    dq.Config(bins=4, prune=0.3, protect=0.01, embedding_bins=16),
]


def save(method, state, ref, config=CONFIGS[0], hints=None):
    """Drafts and encodes; returns (what the next save of this run builds on, streams, announced size)."""
    draft = method.draft(state, ref, config, hints or Hints())
    announced = draft.size
    streams, held = draft.encode()
    return held, StreamTable(streams, state), announced


def restored(method, state, ref=None, config=CONFIGS[0]):
    """What a new process holds after restoring the checkpoint of a state."""
    _, table, _ = save(method, state, ref, config)
    return method.decode(table, ref)


def moved(start, share, seed=9):
    """A state a little further on: by ``share`` of each tensor's deviation."""
    return trained(start, share, seed)


def stale(start, true, held):
    """Share of the movement since ``start`` that a restore of ``held`` would lose."""
    along = total = 0.0
    decoded = held.state()
    for name, before in start.items():
        movement = (true[name].double() - before.double()).flatten()
        taken = (decoded[name].double() - before.double()).flatten()
        along += float(taken @ movement)
        total += float(movement @ movement)
    return 1 - along / total


def chance(start, true, held):
    """Five standard deviations of that share where every error is drawn with mean zero."""
    spread = total = 0.0
    decoded = held.state()
    for name, before in start.items():
        movement = (true[name].double() - before.double()).flatten()
        error = (decoded[name].double() - true[name].double()).flatten()
        spread += float((error * movement).square().sum())
        total += float(movement @ movement)
    assert spread**0.5 < 0.1 * total, "this state is too small to tell"
    return 5 * spread**0.5 / total


def payloads(table):
    return {key: payload for key, (_, payload) in table.rows.items()}


@pytest.mark.parametrize("config", CONFIGS, ids=["16", "8", "4"])
@pytest.mark.parametrize("scope", ["tensor", "global"])
def test_a_second_restore_gives_back_the_movement_since_the_first(config, scope):
    left = {}
    for rule in ("nearest", "dither"):
        method = DynaQuant(after_restore=rule, codebook_scope=scope)
        base = restored(method, layers(), config=config)
        start = base.state()
        true = moved(start, 0.02)
        held, _, _ = save(method, true, base, config)
        further = moved(true, 0.02, seed=10)
        later, _, _ = save(method, further, held, config)
        left[rule] = (stale(start, true, held), stale(start, further, later))
        if rule == "dither":
            limits = (chance(start, true, held), chance(start, further, later))
    assert min(left["nearest"]) > 0.5
    assert all(abs(found) < limit for found, limit in zip(left["dither"], limits, strict=True))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_too(dtype):
    method = DynaQuant()
    base = restored(method, layers(dtype=dtype))
    start = base.state()
    true = moved(start, 0.03)
    held, _, _ = save(method, true, base)
    assert abs(stale(start, true, held)) < chance(start, true, held)


def test_sensitivity_too():
    state = layers()
    generator = torch.Generator().manual_seed(4)
    hints = Hints(gradients={name: torch.randn(w.shape, generator=generator) for name, w in state.items()})
    config = dq.Config(bins=8, prune=0.3, prune_metric="sensitivity", protect=0.005)
    method = DynaQuant()
    _, table, _ = save(method, state, None, config, hints)
    base = method.decode(table, None)
    start = base.state()
    true = moved(start, 0.02)
    fresh = Hints(gradients=hints.gradients)
    held, _, _ = save(method, true, base, config, fresh)
    assert abs(stale(start, true, held)) < chance(start, true, held)


@pytest.mark.parametrize("scope", ["tensor", "global"])
@pytest.mark.parametrize("protect", [0.005, 0.0])
def test_drawn_codes_keep_the_cap_on_a_tensors_error_too(scope, protect):
    generator = torch.Generator().manual_seed(0)
    used = torch.rand(100, 100, generator=generator) < 0.02
    true = {
        "sparse.weight": torch.randn(100, 100, generator=generator) * used,
        "beside.weight": torch.randn(200, 200, generator=generator),
    }
    method, config, ref = DynaQuant(codebook_scope=scope), dq.Config(prune=0.1, protect=protect), None
    for seed in range(4):
        ref = restored(method, true, ref, config)
        for name, tensor in ref.items():
            error = torch.linalg.vector_norm(tensor - true[name])
            assert error <= 0.25 * torch.linalg.vector_norm(true[name]), (seed, name)
        true = trained(true, 0.05, seed)


def test_a_key_in_such_a_run_keeps_the_movement_as_well():
    method = DynaQuant()
    base = restored(method, layers())
    start = base.state()
    true = moved(start, 0.03)
    unknowing, _, _ = save(method, true, None)
    held, table, _ = save(method, true, None, hints=Hints(before=base))
    assert ("", "epoch") not in table.rows
    assert abs(stale(start, true, held)) < chance(start, true, held) < stale(start, true, unknowing)
    assert held.epoch == base.digest


def test_a_store_that_writes_a_key_remembers_the_restore(tmp_path):
    state = layers()
    with dq.CheckpointStore(tmp_path / "run", method="dynaquant", max_chain=0) as store:
        store.save(1, {"model": state}, config=CONFIGS[0])
        start = store.load()["model"]
        true = moved(start, 0.03)
        assert store.save(2, {"model": true}, config=CONFIGS[0]).kind == "key"
        true = moved(true, 0.03, seed=11)
        store.save(3, {"model": true}, config=CONFIGS[0])
        decoded = store.load(3)["model"]

    class Decoded:
        def state(self):
            return decoded

    assert abs(stale(start, true, Decoded())) < chance(start, true, Decoded())


@pytest.mark.parametrize(
    "options", [{}, {"coder": "paper"}, {"codebook_scope": "global"}, {"kmeans": "lloyd"}]
)
def test_readers_get_what_was_announced_along_a_run_with_restores(chain, options):
    method, ref = DynaQuant(**options), None
    configs = [CONFIGS[0], CONFIGS[0], CONFIGS[1], dq.Config(bins="bf16"), CONFIGS[2], dq.Config(bins=64)]
    for number, (state, config) in enumerate(zip(chain, configs, strict=True)):
        draft = method.draft(state, ref, config, Hints())
        seen = {name: tensor.clone() for name, tensor in draft.decoded}
        streams, held = draft.encode()
        table = StreamTable(streams, state)
        read = method.decode(table, ref)
        assert list(seen) == list(read.state())
        assert all(torch.equal(seen[name], tensor) for name, tensor in read.items())
        ref = read if number % 2 == 0 else held


@pytest.mark.parametrize("options", [{}, {"coder": "paper"}])
def test_sizes_are_announced_within_two_percent(options):
    generator = torch.Generator().manual_seed(3)
    state = {f"l{i}.weight": torch.randn(512, 256, generator=generator) * (0.01 + 0.03 * i) for i in range(3)}
    method = DynaQuant(**options)
    ref = restored(method, state)
    state = ref.state()
    for number, config in enumerate((CONFIGS[0], CONFIGS[0], CONFIGS[1], dq.Config(bins=12))):
        state = moved(state, 0.02, seed=number)
        held, table, announced = save(method, state, ref, config)
        assert abs(announced - table.nbytes) <= 0.02 * table.nbytes + 64
        known = method.draft(state, ref, config, Hints())
        known.detach()
        assert abs(known.size - table.nbytes) <= 0.02 * table.nbytes + 64
        ref = held


def test_sizes_of_large_states_come_from_a_sample(monkeypatch):
    monkeypatch.setattr(sample, "SAMPLE", 1 << 16)
    monkeypatch.setattr(sample, "LEAST", 1 << 13)
    state = {"w.weight": torch.randn(512, 700, generator=torch.Generator().manual_seed(3))}
    method = DynaQuant()
    ref = restored(method, state)
    for number in range(2):
        state = moved(state if number else ref.state(), 0.02, seed=number)
        ref, table, announced = save(method, state, ref)
        assert abs(announced - table.nbytes) <= 0.05 * table.nbytes


def test_a_reader_who_knows_the_draws_needs_fewer_bytes():
    sizes = []
    for coder in ("auto", "paper"):
        method = DynaQuant(coder=coder)
        base = restored(method, layers())
        _, table, _ = save(method, moved(base.state(), 0.02), base)
        assert any(kind == "drawn" for _, kind in table.rows) == (coder == "auto")
        sizes.append(table.nbytes)
    assert sizes[0] < 0.8 * sizes[1]


def test_nothing_happens_before_the_first_restore(chain):
    streams = {}
    for rule in ("nearest", "dither"):
        method, ref, found = DynaQuant(after_restore=rule), None, []
        for state, config in zip(chain, [*CONFIGS, *CONFIGS], strict=True):
            ref, table, _ = save(method, state, ref, config)
            found.append(payloads(table))
        streams[rule] = found
    assert streams["nearest"] == streams["dither"]


def test_tensors_that_did_not_move_cost_next_to_nothing_after_a_restore(chain):
    method = DynaQuant()
    for config in CONFIGS:
        _, key, _ = save(method, chain[0], None, config)
        base = method.decode(key, None)
        held, table, _ = save(method, base.state(), base, config)
        assert table.nbytes < 0.05 * key.nbytes
        assert all(torch.equal(tensor, held.state()[name]) for name, tensor in base.items())


def test_the_same_restore_gives_the_same_bytes_and_another_one_other_draws(monkeypatch, chain):
    method = DynaQuant()
    base = restored(method, chain[0])
    true = moved(base.state(), 0.02)
    first, table, _ = save(method, true, base)
    monkeypatch.setenv("DYNAQUANT_THREADS", "4")
    again, other, _ = save(DynaQuant(), true, restored(DynaQuant(), chain[0]))
    assert payloads(table) == payloads(other)
    assert again.epoch == first.epoch is not None
    next_life = method.decode(table, base)
    assert save(method, true, next_life)[0].epoch != first.epoch


def test_the_epoch_outlives_a_checkpoint_beyond_the_cube(chain):
    method = DynaQuant()
    base = restored(method, chain[0])
    middle, _, _ = save(method, chain[1], base, dq.Config(bins="bf16"))
    assert save(method, chain[2], middle)[0].epoch == middle.epoch == base.digest


def test_a_rekeyed_checkpoint_is_the_same_restore(chain):
    method = DynaQuant()
    base = restored(method, chain[0])
    _, table, _ = save(method, chain[1], base)
    read = method.decode(table, base)
    alone = method.decode(StreamTable(method.rekey(read), chain[1]), None)
    assert alone.digest == read.digest
    assert all(torch.equal(tensor, read.state()[name]) for name, tensor in alone.items())


def test_the_published_profile_is_frozen():
    assert digests() == json.loads(Path(FIXTURE).read_text(encoding="utf-8"))


def test_a_restore_changes_nothing_under_the_published_profile(chain):
    method = DynaQuant(profile="paper")
    held, table, _ = save(method, chain[0], None)
    _, after, _ = save(method, chain[1], held)
    _, after_restore, _ = save(method, chain[1], method.decode(table, None))
    assert payloads(after) == payloads(after_restore)


def test_options_of_files_written_before_are_those_of_today():
    for younger in ("after_restore", "prune_scope"):
        assert younger not in DynaQuant().options()
        assert younger not in DynaQuant(profile="paper").options()
    assert DynaQuant(after_restore="nearest").options()["after_restore"] == "nearest"
    for options in (
        DynaQuantOptions(),
        DynaQuantOptions(profile="paper"),
        DynaQuantOptions(after_restore="nearest"),
        DynaQuantOptions(prune_scope="tensor"),
    ):
        assert DynaQuantOptions.from_dict(options.as_dict()) == options
    assert DynaQuantOptions(profile="paper").after_restore == "nearest"
    with pytest.raises(ConfigError, match="after_restore must be one of 'dither', 'nearest'"):
        DynaQuant(after_restore="never")


def test_what_a_reader_needs_must_be_there(chain):
    method = DynaQuant()
    base = restored(method, chain[0])
    _, table, _ = save(method, moved(base.state(), 0.02), base)
    with pytest.raises(MissingBaseError):
        method.decode(table, None)
    del table.rows["", "epoch"]
    with pytest.raises(CorruptFileError, match="epoch"):
        method.decode(table, base)


@pytest.fixture(scope="module")
def second_life():
    """(method, what was restored, the streams of the first checkpoint after it)."""
    method = DynaQuant()
    base = restored(method, layers())
    return method, base, save(method, moved(base.state(), 0.02), base, dq.Config(bins=12, prune=0.2))[1]


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_hostile_streams_are_refused_or_decode_to_the_right_shape(second_life, data):
    method, base, whole = second_life
    source = StreamTable([], layers())
    source.rows = dict(whole.rows)
    table = hostile(data, source)
    try:
        state = method.decode(table, base).state()
    except CorruptFileError:
        return
    assert [tensor.shape for tensor in state.values()] == [tensor.shape for tensor in layers().values()]
    assert all(np.isfinite(tensor.numpy()).all() for tensor in state.values())
