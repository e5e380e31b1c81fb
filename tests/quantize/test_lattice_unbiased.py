"""The lattice's error says nothing about how a weight moved: the property that makes restores free.

``alignment`` is <decoded - W, M> / ||M||^2, M the movement; its mean is 0 for an error without bias, and -1
where decoding undoes the movement.  Its deviation under independent errors is known, so the tests state it.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from dynaquant_core.quantize.lattice import dequantise, offset_key, quantise, round_step

COUNT = 1 << 20
#: A standard normal leaves this once in 10^5.
FAR = 4.4
DTYPES = [torch.float32, torch.bfloat16, torch.float16]


def decoded(weights, step, epoch, name="weight"):
    symbols, out = np.empty(weights.numel(), np.uint8), torch.empty_like(weights)
    key = offset_key(epoch, name)
    escapes = quantise(weights, step, key, symbols)
    dequantise(symbols, escapes, step, key, out)
    return out


def trained(dtype, seed=0):
    """(weights, movement): a run's weights, and by how much they moved since a restore, in float64."""
    draw = np.random.default_rng(seed)
    before = torch.from_numpy(0.02 * draw.standard_normal(COUNT)).to(dtype)
    after = (before.double() + torch.from_numpy(0.001 * draw.standard_t(4, COUNT))).to(dtype)
    return after, after.double() - before.double()


def alignment(error, movement):
    """(alignment, its deviation for errors that are independent of the movement)."""
    energy = float(movement.square().sum())
    spread = math.sqrt(float((error * movement).square().sum())) / energy
    return float((error * movement).sum()) / energy, spread


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("step", [0.002, 0.01, 0.08])
def test_the_error_has_no_mean_and_no_part_along_the_movement(dtype, step):
    step = round_step(step)
    weights, movement = trained(dtype)
    error = decoded(weights, step, epoch=3).double() - weights.double()
    assert abs(float(error.mean())) < FAR * step / math.sqrt(12 * COUNT)
    assert float(error.square().mean()) == pytest.approx(step**2 / 12, rel=0.02)
    found, spread = alignment(error, movement)
    assert spread < 0.03 * step / 0.01  # the power: a bias of a tenth of the movement would show
    assert abs(found) < FAR * spread


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_weight_is_met_on_average_over_epochs(dtype):
    step, draws = round_step(0.01), 400
    weights = torch.linspace(-0.05, 0.05, 500).to(dtype)
    total = sum(decoded(weights, step, epoch).double() for epoch in range(draws))
    error = (total / draws - weights.double()).abs()
    rounding = torch.finfo(dtype).eps * 0.05 / 16  # of values next to a power of two
    assert float(error.max()) < FAR * step / math.sqrt(12 * draws) + rounding


@pytest.mark.parametrize("dtype", DTYPES)
def test_after_a_restore_a_new_epoch_keeps_the_movement_and_the_same_would_undo_it(dtype):
    step = round_step(0.02)
    weights, _ = trained(dtype)
    restored = decoded(weights, step, epoch=0)
    draw = np.random.default_rng(1)
    moved = (restored.double() + torch.from_numpy(0.001 * draw.standard_normal(COUNT))).to(dtype)
    movement = moved.double() - restored.double()
    fresh, spread = alignment(decoded(moved, step, epoch=1).double() - moved.double(), movement)
    assert spread < 0.02
    assert abs(fresh) < FAR * spread
    stuck, _ = alignment(decoded(moved, step, epoch=0).double() - moved.double(), movement)
    assert stuck < -0.97


def test_without_a_restore_the_same_epoch_is_unbiased_too():
    step = round_step(0.02)
    first, _ = trained(torch.float32)
    movement = torch.from_numpy(0.001 * np.random.default_rng(2).standard_normal(COUNT))
    later = (first.double() + movement).float()
    found, spread = alignment(decoded(later, step, epoch=0).double() - later.double(), movement)
    assert spread < 0.02
    assert abs(found) < FAR * spread
