"""Generators and counters of a user's own, given in `extra`."""

import random
from collections import Counter, OrderedDict

import numpy as np
import pytest
import torch

import dynaquant_core as dq
from dynaquant_core.errors import StateMismatchError
from tests.training.models import Net

GENERATORS = {
    "torch": (
        lambda seed: torch.Generator().manual_seed(seed),
        lambda one: torch.rand(3, generator=one).tolist(),
    ),
    "numpy": (np.random.default_rng, lambda one: one.random(3).tolist()),
    "numpy, another": (
        lambda seed: np.random.Generator(np.random.MT19937(seed)),
        lambda one: one.random(3).tolist(),
    ),
    "numpy, legacy": (np.random.RandomState, lambda one: one.normal(size=3).tolist()),
    "python": (random.Random, lambda one: [one.gauss(0, 1) for _ in range(3)]),
}


@pytest.mark.parametrize("kind", GENERATORS)
def test_generators_of_ones_own_go_on_where_they_stood(tmp_path, kind):
    make, draw = GENERATORS[kind]
    drawn, again = make(3), make(4)
    draw(drawn)
    with dq.Checkpointer(tmp_path, Net(), extra={"order": drawn}) as checkpoints:
        checkpoints.save()
    dq.Checkpointer(tmp_path, Net(), extra={"order": again}).restore()
    assert draw(again) == draw(drawn)


def test_a_generator_of_another_kind_is_refused_before_anything_is_touched(tmp_path):
    with dq.Checkpointer(tmp_path, Net(), extra={"order": torch.Generator()}) as checkpoints:
        checkpoints.save()
    order = random.Random(3)
    with pytest.raises(StateMismatchError, match=r"extra\['order'\] refuses .*nothing was restored"):
        dq.Checkpointer(tmp_path, Net(), extra={"order": order}).restore()
    assert order.random() == random.Random(3).random()


def test_counters_come_back_wherever_they_lie(tmp_path):
    class Seen:
        def __init__(self, *counts):
            self.state = {"a": (Counter(*counts), 3), "b": OrderedDict(c=[Counter(*counts)])}

        def state_dict(self):
            return self.state

        def load_state_dict(self, state):
            self.state = state

    with dq.Checkpointer(tmp_path, Net(), extra={"seen": (saved := Seen("aab"))}) as checkpoints:
        checkpoints.save()
    dq.Checkpointer(tmp_path, Net(), extra={"seen": (again := Seen())}).restore()
    assert again.state == saved.state
    assert type(again.state["a"][0]) is type(again.state["b"]["c"][0]) is Counter
