"""Second moments that are restored again and again: right on average, whatever moves between."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import torch

from dynaquant_core.methods.moments.forms import decoded, encoded
from dynaquant_core.quantize import blocks
from dynaquant_core.quantize.lattice import offset_key
from dynaquant_core.state import TensorSpec

BETA = 0.999


def round_trip(values, signed, grid, key=None):
    out = torch.empty_like(values)
    blocks.decode(*blocks.encode(values, signed, grid, key=key), out, grid)
    return out


@pytest.mark.parametrize("signed", [True, False])
@pytest.mark.parametrize("grid", [blocks.EIGHT, blocks.FOUR])
def test_the_nearest_step_has_no_direction(signed, grid):
    """Over values spread evenly in their logarithm; it was a 128th of an octave too low."""
    values = torch.exp2(torch.rand(1 << 20, generator=torch.Generator().manual_seed(0)) * 5)
    values *= 1 - 2 * signed * torch.randint(2, values.shape, generator=torch.Generator().manual_seed(1))
    off = (round_trip(values, signed, grid) / values).log2()
    # Steps of up to an octave over a million values: a standard error of 0.0003.
    assert abs(float(off.mean())) < 0.0015


@pytest.mark.parametrize("grid", [blocks.EIGHT, blocks.FOUR])
def test_drawn_steps_are_right_on_average_and_next_to_the_value(grid):
    generator = torch.Generator().manual_seed(0)
    values = torch.exp2(torch.rand(256, generator=generator) * 6)
    found = [round_trip(values, False, grid, offset_key(epoch, "v")) for epoch in range(4000)]
    mean = torch.stack(found).double().mean(0) / values
    # A draw is off by half a step at most, 0.5% or 6% after 4000: five of their standard errors, and half a
    # 64th of an octave that levels are told by.
    widest = 0.045 if grid is blocks.EIGHT else 0.5
    assert float((mean - 1).abs().max()) < 5 * widest / 4000**0.5 + 0.0055
    step = 0.125 if grid is blocks.EIGHT else 0.5
    assert all(bool(((one / values).log2().abs() < step + 0.01).all()) for one in found[:50])


@pytest.mark.parametrize("grid", [blocks.EIGHT, blocks.FOUR])
def test_what_lies_on_steps_stays_whatever_is_drawn(grid):
    values = torch.exp(2 * torch.randn(5000, generator=torch.Generator().manual_seed(0)))
    once = round_trip(values, False, grid, 5)
    assert all(torch.equal(round_trip(once, False, grid, key), once) for key in range(50))


@pytest.mark.parametrize("letter", ["e", "p", "q"])
@pytest.mark.parametrize(("between", "restores"), [(20, 150), (60, 50), (200, 20)])
def test_a_moment_that_falls_while_it_is_restored_falls_as_it_should(letter, between, restores):
    """To the nearest step, what moves by less than half a step until the next restore never moves."""
    generator = torch.Generator().manual_seed(0)
    normal = partial(torch.randn, generator=generator)
    scale = (normal(192, 1) + 0.3 * normal(1, 48)).exp()
    found = exact = scale.square()
    spec = TensorSpec.of(found)
    for number in range(restores):
        found = decoded(encoded(found, letter, offset_key(number, "v")), spec)
        for step in range(between):
            now = 0.1 ** ((number * between + step) / (restores * between))
            squared = (normal(192, 48) * scale * now).square()
            found, exact = (BETA * one + (1 - BETA) * squared for one in (found, exact))
    ratio = found / exact
    # Draws of 288 groups, or of 6 of rows, each off by a third when there are many of them.
    assert float(ratio.log2().mean().exp2()) == pytest.approx(1, abs=0.1 if letter == "e" else 0.3)


@pytest.mark.parametrize("letter", ["p", "q"])
@pytest.mark.parametrize("between", [0, 1, 20])
def test_a_product_does_not_get_worse_from_restore_to_restore(letter, between):
    generator = torch.Generator().manual_seed(0)
    normal = partial(torch.randn, generator=generator)
    scale = (normal(64, 1) + normal(1, 96) + 0.35 * normal(64, 96)).exp()
    found = exact = scale.square()
    spec, energies, errors = TensorSpec.of(found), [], []
    for number in range(60):
        found = decoded(encoded(found, letter, offset_key(number, "v")), spec)
        energies.append(float((exact / found).mean()))
        errors.append(float((exact / found).log2().square().mean().sqrt()))
        for _ in range(between):
            squared = (normal(64, 96) * scale).square()
            found, exact = (BETA * one + (1 - BETA) * squared for one in (found, exact))
    assert max(energies) < 1.3
    assert max(errors) < 1.15 * errors[0]
    assert np.isfinite(errors).all()
