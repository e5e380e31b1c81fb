"""Restores are free: no movement is lost, whatever the dtype, and epochs follow one another on every machine.

``alignment`` is <decoded - W, M> / ||M||^2, M the movement since the restore: 0 for an error without bias, -1
where decoding undoes the movement.  Its deviation for independent errors is known, so the tests state it.
"""

from __future__ import annotations

import math

import pytest
import torch

from dynaquant_core.config import LatticeConfig
from dynaquant_core.methods.base import Hints
from dynaquant_core.methods.lattice import Lattice
from dynaquant_core.methods.lattice.cells import Cells
from dynaquant_core.methods.lattice.plan import fresh_epoch, next_epoch
from tests.methods.conftest import layers, trained
from tests.methods.streams import StreamTable, assert_same, store

LATTICE = Lattice()
POINT = LatticeConfig(scale=0.5)
#: A standard normal leaves this once in 10^5.
FAR = 4.4


def large(dtype=torch.float32, seed=0):
    """Three tensors of different scale, 400 thousand weights."""
    draw = torch.Generator().manual_seed(seed)
    return {
        f"layer{i}.weight": (torch.randn(350, 380, generator=draw) * 0.02 * 2**i).to(dtype) for i in range(3)
    }


def double(state):
    return torch.cat([tensor.double().flatten() for tensor in state.values()])


def alignment(decoded, weights, start):
    """(alignment, its deviation for errors that are independent of the movement, noise)."""
    movement, error = double(weights) - double(start), double(decoded) - double(weights)
    energy = float(movement.square().sum())
    spread = math.sqrt(float((error * movement).square().sum())) / energy
    return float(error @ movement) / energy, spread, float(error.square().sum()) / energy


def moved(state, share, seed):
    """A little training: each tensor moves by ``share`` of its spread."""
    return trained(state, share, seed)


# -- no bias -------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("scale", [0.5, 0.1])
def test_after_a_restore_no_movement_is_lost(dtype, scale):
    point = LatticeConfig(scale=scale)
    start = store(LATTICE, large(dtype), None, point)[2]
    weights = moved(start.state(), 0.2 * scale, seed=1)
    decoded = store(LATTICE, weights, start, point)[2].state()
    found, spread, noise = alignment(decoded, weights, start.state())
    assert 1 < noise < 10  # the error outweighs the movement ...
    assert spread < 0.006  # ... and yet a fortieth of it would show if it were lost
    assert abs(found) < FAR * spread


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_with_the_epoch_held_fixed_the_movement_would_be_undone(dtype):
    start = store(LATTICE, large(dtype), None, POINT)[2]
    weights = moved(start.state(), 0.02, seed=1)
    start.restored = False  # as in a run that went on, whose weights do not lie on the lattice
    decoded = store(LATTICE, weights, start, POINT)[2].state()
    assert alignment(decoded, weights, start.state())[0] < -0.98


def test_a_run_that_goes_on_loses_nothing_on_its_old_lattice():
    first = large()
    _, held, _, _ = store(LATTICE, first, None, POINT)
    weights = moved(first, 0.1, seed=1)
    decoded = store(LATTICE, weights, held, POINT)[2].state()
    found, spread, _ = alignment(decoded, weights, first)
    assert spread < 0.006
    assert abs(found) < FAR * spread


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_stale_is_small_at_every_checkpoint_of_a_run_that_is_restored_at_each(dtype):
    """Weights go to a target, in lives of two checkpoints; movement counts from the restore."""
    target, weights, ref = large(torch.float64, seed=9), large(dtype), None
    start, stale, epochs = weights, [], []
    for step in range(12):
        drift = {name: 0.08 * (target[name] - tensor.double()) for name, tensor in weights.items()}
        weights = {name: (tensor.double() + drift[name]).to(dtype) for name, tensor in weights.items()}
        point = LatticeConfig(scale=0.4 if step < 6 else 0.35)  # a search changes its mind
        _, held, read, _ = store(LATTICE, weights, ref, point)
        found, spread, noise = alignment(read.state(), weights, start)
        stale.append(-found)
        assert spread < 0.005
        assert noise < 6
        epochs.append(read.epoch)
        if step % 2:
            ref, weights = read, read.state()
            start = weights
        else:
            ref = held
    assert max(map(abs, stale)) <= 0.02
    assert epochs == [epochs[0] + life for life in range(6) for _ in range(2)]
    distance = double(target) - double(weights)
    assert float(distance.square().sum()) < 0.5 * float(
        (double(target) - double(large(dtype))).square().sum()
    )


# -- epochs --------------------------------------------------------------------------------------


def epoch_after(state, ref, scale=0.5):
    return store(LATTICE, state, ref, LatticeConfig(scale=scale))[1].epoch


def test_the_epoch_stays_while_a_run_goes_on_and_is_the_next_after_every_restore():
    state = layers()
    _, held, read, _ = store(LATTICE, state, None, POINT)
    assert read.epoch == held.epoch
    later = trained(state)
    for scale in (0.5, 0.3, "bf16", "exact"):
        assert epoch_after(later, held, scale) == held.epoch
        assert epoch_after(later, read, scale) == (held.epoch + 1) % 2**32
    read.epoch = 2**32 - 1
    assert next_epoch(read) == 0


def test_offsets_are_drawn_anew_with_the_epoch():
    state = layers()
    _, held, read, _ = store(LATTICE, state, None, POINT)
    later = trained(state, 1e-3)
    same = store(LATTICE, later, held, POINT)[1].tensors
    fresh = store(LATTICE, later, read, POINT)[1].tensors
    for name in state:
        assert (same[name].epoch, fresh[name].epoch) == (held.epoch, held.epoch + 1)
        assert same[name].key == held.tensors[name].key != fresh[name].key


def test_a_keys_epoch_follows_from_the_weights_alone():
    state = layers()
    clone = {name: tensor.clone() for name, tensor in state.items()}
    known = Hints(fisher=dict.fromkeys(state, 1e-4))
    epochs = {
        epoch_after(state, None),
        epoch_after(clone, None, scale=0.1),
        epoch_after(state, None, scale="exact"),
        store(LATTICE, state, None, POINT, known)[1].epoch,
    }
    assert len(epochs) == 1
    clone["conv.weight"].view(-1)[7] += 1e-6
    assert epoch_after(clone, None) not in epochs
    assert fresh_epoch({"w": torch.arange(300.0).view(20, 15)}) == 1995653469  # on any machine


def test_chains_of_weights_that_begin_alike_share_no_offsets():
    """The first rows of a table may never be trained: a chain begun anew took the offsets of the last."""
    draw = torch.Generator().manual_seed(0)
    states = [{"w": torch.randn(300, 64, generator=draw)} for _ in range(2)]
    for state in states:
        state["w"][:20] = 0
    assert fresh_epoch(states[0]) != fresh_epoch(states[1])


# -- what does not train -------------------------------------------------------------------------


def test_frozen_tensors_keep_their_values_through_any_number_of_restores_for_nothing():
    frozen = {"frozen.weight": torch.randn(300, 300, generator=torch.Generator().manual_seed(0))}
    frozen |= {"frozen.norm": torch.rand(64)}
    state = layers() | frozen
    _, _, ref, _ = store(LATTICE, state, None, POINT)
    kept = {name: ref.state()[name] for name in frozen}
    lattices = {name: (ref.tensors[name].step, ref.tensors[name].epoch) for name in frozen}
    for seed, scale in enumerate((0.5, 0.5, 0.4, 0.02, 1.0)):
        for life in range(2):
            state = trained(ref.state(), seed=seed) | kept
            _, held, read, table = store(LATTICE, state, ref, LatticeConfig(scale=scale))
            assert not table.has("frozen.weight", "residuals")
            found = {name: read.state()[name] for name in frozen}
            assert_same(kept, found)
            assert {name: (held.tensors[name].step, held.tensors[name].epoch) for name in frozen} == lattices
            ref = held if life == 0 else read
    name = "frozen.weight"
    state = ref.state() | {name: kept[name] + 0.01}
    thawed = store(LATTICE, state, ref, POINT)[1].tensors[name]
    assert thawed.epoch == next_epoch(ref)


# -- chains that are written anew ----------------------------------------------------------------


@pytest.mark.parametrize(
    "scales", [(0.5, 0.5, 0.5), (8.0, 0.02, 0.02), (0.5, "bf16", 0.5), (0.1, 0.5, "exact")]
)
def test_a_chain_written_anew_holds_the_same_and_is_built_on_alike(scales):
    state, ref = layers() | {"zeros": torch.zeros(300), "norm": torch.rand(64)}, None
    state["mlp.0.weight"].view(-1)[5] = 9.0
    for seed, scale in enumerate(scales):
        _, held, read, _ = store(LATTICE, state, ref, LatticeConfig(scale=scale))
        ref = read if seed == 1 else held
        state = trained(state, seed=seed)
    key = StreamTable(LATTICE.rekey(held), state)
    anew = LATTICE.decode(key, None)
    assert_same(held.state(), anew.state())
    for name in state:
        assert_same({name: held.state()[name]}, LATTICE.decode(key, None, [name]).state())
        ours, theirs = held.tensors[name], anew.tensors[name]
        assert type(ours) is type(theirs)
        if isinstance(ours, Cells):
            assert bytes(ours.packed) == bytes(theirs.packed)  # histories included
    for scale in (0.5, 0.02):
        seen, after, _, table = store(LATTICE, state, held, LatticeConfig(scale=scale))
        again = LATTICE.decode(table, anew)
        assert_same(seen, again.state())
        further = store(LATTICE, trained(state, seed=9), after, LatticeConfig(scale=scale))
        assert_same(further[0], LATTICE.decode(further[3], again).state())


def test_only_what_the_method_decoded_is_written_anew():
    with pytest.raises(TypeError, match="rekey"):
        LATTICE.rekey(object())


def test_frozen_tensors_keep_their_values_through_keys_too():
    """A full chain, a new tensor: what follows is a key, and must be no new noise on a frozen layer."""
    state = large()
    kept, size = state["layer0.weight"], {}
    read = store(LATTICE, state, None, POINT)[2]
    first = read.state()["layer0.weight"]
    for life in range(6):
        now = moved(read.state(), 0.2, seed=life) | {"layer0.weight": read.state()["layer0.weight"]}
        hints = Hints(before=read)
        draft = LATTICE.draft(now, None, POINT, hints)
        seen, held, again, table = store(LATTICE, now, None, POINT, hints)
        assert abs(draft.size - table.nbytes) < 0.02 * table.nbytes
        assert_same(seen, again.state())
        assert torch.equal(again.state()["layer0.weight"], first)
        assert not torch.equal(again.state()["layer1.weight"], now["layer1.weight"])
        size[life] = table.nbytes
        read = store(LATTICE, moved(now, 0.02, seed=9) | {"layer0.weight": first}, held, POINT)[2]
        assert torch.equal(read.state()["layer0.weight"], first), "and a delta goes on from such a key"
    assert (first - kept).norm() < 0.31 * kept.norm(), "noise of one step of a spread"
    assert max(size.values()) < 1.05 * store(LATTICE, now, None, POINT)[3].nbytes


@pytest.mark.parametrize("other", [LatticeConfig(scale=scale) for scale in (0.02, "bf16", "exact")], ids=str)
@pytest.mark.parametrize("key", [False, True])
def test_checkpoints_that_are_nearer_bring_a_frozen_tensor_no_other_noise(other, key):
    """It went on a lattice of its own after an exact checkpoint, and on a finer one for a finer scale."""
    state = large()
    held = store(LATTICE, state, None, POINT)[1]
    first = held.state()["layer0.weight"]
    now = moved(state, 0.02, seed=9) | {"layer0.weight": state["layer0.weight"]}
    read = store(LATTICE, now, held, POINT)[2]
    assert torch.equal(read.state()["layer0.weight"], first)
    for life in range(4):
        now = read.state()
        for save, point in enumerate((POINT, other, POINT)):
            now = moved(now, 0.1, seed=3 * life + save) | {"layer0.weight": first}
            base, hints = (None, Hints(before=read)) if key and point is other else (read, Hints())
            seen, held, again, _ = store(LATTICE, now, base, point, hints)
            assert_same(seen, again.state())
            assert torch.equal(again.state()["layer0.weight"], first)
            if point.scale == "exact":
                assert_same(now, again.state())
            read = held  # the run goes on
        read = again


def test_a_frozen_tensor_of_another_shape_or_type_is_no_frozen_tensor():
    state = large()
    read = store(LATTICE, state, None, POINT)[2]
    now = {name: tensor.double() for name, tensor in read.state().items()} | {"new": torch.randn(40, 40)}
    now["layer1.weight"] = now["layer1.weight"].reshape(380, 350)
    again = store(LATTICE, now, None, POINT, Hints(before=read))[2]
    assert all(not torch.equal(tensor, now[name]) for name, tensor in again.state().items())


# -- in bfloat16 ---------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16])
@pytest.mark.parametrize(("mean", "step"), [(1.0, 1e-3), (0.0, 3e-5)])
def test_in_bfloat16_movement_below_its_precision_is_not_lost_either(dtype, mean, step):
    """Restored weights lie on values of bfloat16; the nearest one would be the same again."""
    draw, point = torch.Generator().manual_seed(0), LatticeConfig(scale="bf16")
    read = store(
        LATTICE, {"w": (mean + 0.02 * torch.randn(400, 400, generator=draw)).to(dtype)}, None, point
    )[2]
    for _ in range(3):
        start = read.state()
        weights = {"w": start["w"] + (step * torch.randn(400, 400, generator=draw)).to(dtype)}
        seen, held, read, table = store(LATTICE, weights, read, point)
        assert_same(seen, read.state())
        found, spread, _ = alignment(read.state(), weights, start)
        assert spread < 0.02
        assert abs(found) < FAR * spread
        again = store(LATTICE, weights, held, point)  # in a run each weight is rounded as it was
        assert_same(again[2].state(), read.state())
        assert again[3].nbytes < table.nbytes / 50


def test_bfloat16_keeps_what_it_has_and_makes_nothing_infinite():
    far = {
        dtype: torch.finfo(dtype).max * torch.tensor([1.0, -1.0], dtype=dtype)
        for dtype in (torch.float16, torch.float32, torch.float64)
    }
    for dtype, ends in far.items():
        values = torch.cat(
            [ends, torch.randn(600).bfloat16().to(dtype).clamp(-10, 10), torch.zeros(2, dtype=dtype)]
        )
        decoded = store(LATTICE, {"w": values}, None, LatticeConfig(scale="bf16"))[2].state()["w"]
        assert torch.isfinite(decoded).all()
        assert torch.equal(decoded[2:], values[2:])
        assert torch.equal(decoded[:2].sign(), ends.sign())
