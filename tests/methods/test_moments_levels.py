"""Second moments of ``minimal``: a product of rows and columns, with a level an element."""

from __future__ import annotations

import torch

from dynaquant_core.methods.moments import moments_method
from tests.methods.moment_states import chain, write

#: A second moment of the test's model that is a product, more or less.
NAME = "optimizer.state.4.exp_avg_sq"


def read(name, states):
    """(letters of `NAME`, its last value as a reader gets it, bytes of each checkpoint) of a chain."""
    policy, held, writer, letters, sizes = moments_method(name), None, None, [], []
    for state in states:
        source, writer = write(policy, state, writer)
        held = policy.decode(source, held)
        letters.append(held.coded[NAME].letter)
        sizes.append(source.nbytes)
    return letters, held.state()[NAME], sizes


def off(found, exact):
    """Root mean square, in octaves, of what an optimizer's steps are off by."""
    return float((found / exact).sqrt().log2().square().mean().sqrt())


def test_steps_after_a_restore_are_closer_than_with_a_product_alone():
    states = chain(length=5)
    letters, found, _ = read("minimal", states)
    other, product, _ = read("second", states)
    assert (set(letters), set(other)) == ({"q"}, {"p"})
    assert off(found, states[-1][NAME]) < 0.85 * off(product, states[-1][NAME])


def test_levels_are_told_against_those_of_the_base():
    states = chain(length=6)[-2:]
    only = [{NAME: state[NAME]} for state in states]
    _, _, (_, delta) = read("minimal", only)
    _, _, (again,) = read("minimal", only[1:])
    assert delta < 0.7 * again


def test_a_restored_run_goes_on_with_the_levels_of_its_base():
    policy, states, held = moments_method("minimal"), chain(length=4), None
    for state in states:
        source, _ = write(policy, state, held)
        held = policy.decode(source, held)
    alone = policy.decode(write(policy, states[-1])[0], None)
    assert torch.equal(held.state()[NAME], alone.state()[NAME])


def test_zeros_and_rows_without_gradients_stay_so():
    policy, name = moments_method("minimal"), "state.0.exp_avg_sq"
    values = torch.rand(300, 200, generator=torch.Generator().manual_seed(0)).square()
    values[7], values[:, 9] = 0.0, 0.0
    found = policy.decode(write(policy, {name: values})[0], None).state()[name]
    assert ((found == 0) == (values == 0)).all()
    assert found.isfinite().all()
