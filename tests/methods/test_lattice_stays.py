"""Which steps tensors get, and when one stays on the lattice that it is on."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from dynaquant_core.config import LatticeConfig
from dynaquant_core.methods.base import Hints
from dynaquant_core.methods.lattice import Lattice
from tests.methods.conftest import layers
from tests.methods.streams import store


def test_steps_follow_the_optimizers_second_moments_else_gradients():
    names = list(layers())
    quiet = Hints(fisher={name: 1e-8 if name == names[0] else 1e-4 for name in names})
    slopes = {
        name: tensor.sqrt()
        for name, tensor in {
            name: torch.full(layers()[name].shape, value) for name, value in quiet.fisher.items()
        }.items()
    }
    free = Lattice(max_step=None)
    known = store(free, layers(), None, LatticeConfig(), quiet)[1]
    averaged = store(free, layers(), None, LatticeConfig(), Hints(gradients=slopes))[1]
    unknown = store(free, layers(), None, LatticeConfig())[1]
    steps = [{name: held.tensors[name].step for name in names} for held in (known, averaged, unknown)]
    assert steps[0] == pytest.approx(steps[1], rel=0.01)
    assert steps[0][names[0]] / steps[0][names[1]] > 4 * steps[2][names[0]] / steps[2][names[1]]
    mean = np.average(
        [np.log2(step) for step in steps[0].values()], weights=[layers()[n].numel() for n in names]
    )
    spread = np.average(
        [np.log2(float(layers()[n].std())) for n in names], weights=[layers()[n].numel() for n in names]
    )
    assert mean - spread == pytest.approx(np.log2(0.5), abs=0.02)


@pytest.mark.parametrize(("scales", "stays"), [((0.5, 0.4), True), ((0.4, 0.5), True), ((0.5, 0.1), False)])
def test_a_frozen_tensor_costs_nothing_where_the_scale_changes_a_little(scales, stays):
    generator = torch.Generator().manual_seed(0)
    state = {name: torch.randn(128, 128, generator=generator) for name in ("frozen", "trained")}
    before, after = (LatticeConfig(scale=scale) for scale in scales)
    _, written, _, _ = store(Lattice(), state, None, before)
    state["trained"] = state["trained"] + 0.3 * torch.randn(128, 128, generator=generator)
    draft = Lattice().draft(state, written, after, Hints())
    held = dict(draft.decoded)["frozen"]
    assert torch.equal(held, written.state()["frozen"]) is stays
    _, reference = draft.encode()
    assert (reference.tensors["frozen"].step == written.tensors["frozen"].step) is stays
    assert reference.tensors["trained"].step != written.tensors["trained"].step


@pytest.mark.parametrize("factor", [0.01, 1e-6])
def test_weights_that_shrink_are_not_lost_in_the_noise_of_their_old_step(factor):
    generator = torch.Generator().manual_seed(0)
    state = {name: torch.randn(128, 128, generator=generator) for name in ("shrunk", "other")}
    _, held, _, _ = store(Lattice(), state, None, LatticeConfig())
    state["shrunk"] = factor * state["shrunk"]
    _, later, read, _ = store(Lattice(), state, held, LatticeConfig())
    assert torch.linalg.vector_norm(read.state()["shrunk"] - state["shrunk"]) < 0.3 * state["shrunk"].norm()
    assert later.tensors["other"].step == held.tensors["other"].step


def test_weights_that_grow_from_next_to_nothing_do_not_stay_outliers():
    generator = torch.Generator().manual_seed(0)
    state = {name: torch.randn(128, 128, generator=generator) for name in ("adapter", "frozen")}
    begun = state | {"adapter": 1e-4 * torch.randn(128, 128, generator=generator)}
    _, held, _, _ = store(Lattice(), begun, None, LatticeConfig())
    draft = Lattice().draft(state, held, LatticeConfig(), Hints())
    assert draft.size < 0.5 * 128 * 128
    assert torch.equal(dict(draft.decoded)["frozen"], held.state()["frozen"])
