"""Generators that objects of users hold, and what puts them back."""

import random
from functools import partial

import numpy as np
import torch

from dynaquant_core.plugins.generators import kept


def drawn(generator):
    if isinstance(generator, torch.Generator):
        return torch.rand(1, generator=generator).item()
    return float(generator.random())


class Scaling:
    """A collator with a generator of its own."""

    def __init__(self, generator):
        self.generator = generator


class Late:
    """Makes its generator when it is first used."""

    def __init__(self):
        self.generator, self.seen = None, []

    def __call__(self):
        if self.generator is None:
            self.generator = torch.Generator().manual_seed(0)
        self.seen.append(drawn(self.generator))


def test_a_generator_that_is_made_late_is_forgotten():
    late = Late()
    for _ in range(2):
        with kept([late]):
            late()
    assert late.generator is None
    assert len(set(late.seen)) == 1


class Holder:
    """Generators where objects of users have them."""

    def __init__(self):
        self.pipeline = [Scaling(random.Random(1)), {"inner": Scaling(np.random.RandomState(1))}]
        self.bound = partial(drawn, np.random.default_rng(1))


def test_generators_are_found_in_lists_and_arguments():
    holder = Holder()
    deep = [holder.pipeline[0].generator, holder.pipeline[1]["inner"].generator, holder.bound.args[0]]
    with kept([holder]):
        first = [drawn(generator) for generator in [*deep[:1], *deep[2:]]] + [deep[1].random_sample()]
    assert [drawn(generator) for generator in [*deep[:1], *deep[2:]]] + [deep[1].random_sample()] == first


def test_what_holds_itself_and_what_is_long_ends():
    holder = Holder()
    holder.self, holder.long = holder, [Scaling(random.Random(2))] * 100_000
    with kept([holder, None, 3, "text", torch.ones(2)]):
        drawn(holder.pipeline[0].generator)
    assert drawn(holder.pipeline[0].generator) == random.Random(1).random()


def test_a_generator_that_is_replaced_comes_back():
    scaling = Scaling(random.Random(3))
    before = scaling.generator
    with kept([scaling]):
        scaling.generator, scaling.second = random.Random(4), random.Random(5)
    assert scaling.generator is before
    assert not hasattr(scaling, "second")
