"""Zeros of a pruned matrix stay zeros, through chains, restores and keys made of deltas."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import dynaquant_core as dq
from dynaquant_core.coding import codec_by_id, encode_smallest
from dynaquant_core.config import LatticeConfig
from dynaquant_core.errors import CorruptFileError
from dynaquant_core.methods.base import Hints
from dynaquant_core.methods.lattice import Lattice
from tests.methods.streams import StreamTable, assert_same, store

LATTICE = Lattice()


def saved(state, ref, scale=0.5):
    return store(LATTICE, state, ref, LatticeConfig(scale=scale), Hints())


def read_bits(streams):
    codec, payload = streams.get("w", "zeros")
    middle = int(LATTICE.decode(streams, None).tensors["w"].middle().sum())
    bits = np.empty(-(-middle // 8), np.uint8)
    codec_by_id(codec).decode(payload, bits)
    return bits


def pruned(shape, share, dtype=torch.float32, seed=0):
    generator = torch.Generator().manual_seed(seed)
    weights = torch.randn(shape, generator=generator).to(dtype)
    mask = torch.rand(shape, generator=generator) >= share
    return weights * mask  # with zeros of either sign, as torch.nn.utils.prune leaves them


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
@given(
    shape=st.sampled_from([(40, 16), (7, 5, 3, 3), (1, 300), (300, 1), (33, 31)]),
    shares=st.lists(st.sampled_from([0.0, 0.1, 0.5, 0.9, 1.0]), min_size=4, max_size=4),
    restored=st.lists(st.booleans(), min_size=4, max_size=4),
)
@settings(max_examples=25, deadline=None)
def test_zeros_stay_zeros_whatever_becomes_of_the_mask(dtype, shape, shares, restored):
    ref = None
    for seed, (share, again) in enumerate(zip(shares, restored, strict=True)):
        state = {"w": pruned(shape, share, dtype, seed), "dense": pruned((30, 30), 0.0, dtype, 1)}
        seen, held, read, _ = saved(state, ref)
        assert_same(seen, read.state())
        stored, zeros = read.state(), state["w"] == 0
        assert not stored["w"][zeros].any()
        assert stored["w"].count_nonzero() >= 0.9 * (~zeros).sum()
        assert stored["dense"].count_nonzero() >= 890
        ref = read if again else held


@pytest.mark.parametrize("again", [False, True], ids=["within a run", "after a restore"])
def test_a_mask_that_stays_is_free_after_the_first_checkpoint(again):
    state = {"w": pruned((500, 200), 0.9)}
    _, held, read, key = saved(state, None)
    state = read.state() if again else state
    moved = {"w": state["w"] + 0.01 * (state["w"] != 0)}
    streams = saved(moved, read if again else held)[3]
    assert len(key.rows["w", "zeros"][1]) < 100_000 * 0.2 / 8  # few other weights have k = 0
    assert len(streams.rows["w", "zeros"][1]) < 20
    assert torch.equal(LATTICE.decode(streams, read).state()["w"] == 0, state["w"] == 0)


def test_few_zeros_are_no_mask():
    state = {"w": pruned((500, 200), 0.005)}
    assert ("w", "zeros") not in saved(state, None)[3].rows


MASKS = {
    "taps after the centre": ((64, 64, 3, 3), lambda n: n % 9 > 4),
    "all taps but the first": ((64, 64, 3, 3), lambda n: n % 9 > 0),
    "columns": ((4096, 161), lambda n: n % 161 > 80),
    "a few columns": ((1024, 768), lambda n: n % 768 < 13),
    "rows of heads": ((768, 768), lambda n: n // 768 % 64 == 5),
    "a corner": ((1024, 1024), lambda n: (n // 1024 < 150) & (n % 1024 < 150)),
    "one weight in sixty": ((700, 701), lambda n: (n * 2654435761) % 2**32 < 2**32 / 60),
}


@pytest.mark.parametrize("kind", MASKS)
def test_a_mask_is_seen_wherever_it_lies(kind):
    """Samples at even distances looked at one tap of every kernel, or at one column."""
    shape, is_zero = MASKS[kind]
    state = {"w": pruned(shape, 0.0)}
    gone = torch.from_numpy(is_zero(np.arange(state["w"].numel()))).reshape(shape)
    state["w"][gone] = 0
    read = saved(state, None)[2].state()
    assert torch.equal(read["w"] == 0, gone)


def test_zeros_beside_rows_that_stay_are_seen():
    """Few tokens of an embedding occurred since a restore: their rows are pruned, others what they were."""
    state = {"w": pruned((2000, 64), 0.0)}
    read = saved(state, None)[2]
    state = read.state()
    state["w"][7:30] = pruned((23, 64), 0.5, seed=3)
    again = saved(state, read)[2].state()
    assert torch.equal(again["w"] == 0, state["w"] == 0)


def test_a_pruned_matrix_of_which_rows_are_zero_says_them_once():
    state = {"w": pruned((200, 64), 0.5)}
    state["w"][::2] = 0
    streams = saved(state, None)[3]
    assert np.unpackbits(read_bits(streams)).sum() == (state["w"][1::2] == 0).sum()
    dense = {"w": pruned((200, 64), 0.0)}
    dense["w"][::2] = 0
    assert ("w", "zeros") not in saved(dense, None)[3].rows


def test_a_key_made_of_a_delta_gives_the_zeros():
    state = {"w": pruned((40, 16), 0.8)}
    held = saved(state, None)[1]
    state["w"][:20] *= 2
    state["w"][3] = 1
    later = saved(state, held)[2]
    again = LATTICE.decode(StreamTable(LATTICE.rekey(later), state), None)
    assert_same(again.state(), later.state())
    assert torch.equal(again.state()["w"] == 0, state["w"] == 0)


def test_zeros_that_no_writer_says_are_refused():
    state = {"w": pruned((9, 7), 0.5)}
    state["w"][4] = 1
    streams = saved(state, None)[3]
    bits = read_bits(streams)
    for changed in (bits[:-1], np.append(bits, 0), 0 * bits):
        streams.rows["w", "zeros"] = encode_smallest(changed)
        with pytest.raises(CorruptFileError, match=r"tensor w|stream"):
            LATTICE.decode(streams, None)
    del streams.rows["w", "zeros"]
    with pytest.raises(CorruptFileError, match="zeros"):
        LATTICE.decode(streams, None)


@pytest.mark.parametrize("share", [0.5, 0.9, 0.99])
def test_steps_and_lengths_are_those_of_the_weights_that_are_left(share):
    dense = pruned((400, 64, 3, 3), 0.0)
    zeros = torch.rand(dense.shape, generator=torch.Generator().manual_seed(1)) < share
    hints = {"conv.weight": "convolution", "w": "linear"}, {"bn.running_var": "exact"}
    for name in ("conv.weight", "w"):
        found = {}
        for kind, tensor in (("dense", dense), ("pruned", dense.masked_fill(zeros, 0))):
            given_hints = Hints(layer_types=hints[0], roles=hints[1])
            held = store(LATTICE, {name: tensor}, None, LatticeConfig(scale=0.8), given_hints)[1]
            found[kind] = held.tensors[name]
            got = found[kind].tensor().double().square().sum() / tensor.double().square().sum()
            if name == "conv.weight":
                assert got == pytest.approx(1, abs=0.02)  # it stands beside a batch norm
        assert found["pruned"].step == pytest.approx(found["dense"].step, rel=0.15)
        assert found["pruned"].factor == pytest.approx(found["dense"].factor, abs=0.01)
        assert (found["dense"].factor < 0.98) == (name == "conv.weight")


def test_a_sparse_training_goes_on_with_its_mask(tmp_path: Path) -> None:
    """Its mask is nothing but where weights are not zero, taken anew by every process."""
    masks = []
    for _ in range(3):
        torch.manual_seed(1)
        model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 10))
        with torch.no_grad():
            for layer in (model[0], model[2]):
                layer.weight *= torch.rand_like(layer.weight) < 0.2
        optimizer = torch.optim.Adam(model.parameters(), 1e-2)
        with dq.Checkpointer(tmp_path / "run", model, optimizer, every=5) as checkpoints:
            checkpoints.restore()
            mask = model[0].weight.detach() != 0
            masks.append(mask)
            for _ in range(10):
                loss = model(torch.randn(16, 32)).square().mean()
                optimizer.zero_grad()
                loss.backward()
                model[0].weight.grad *= mask
                optimizer.step()
                checkpoints.step()
    assert all(torch.equal(mask, masks[0]) for mask in masks)
    assert 0.15 < masks[0].float().mean() < 0.25
