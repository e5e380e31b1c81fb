"""Hooks whose owner is gone: the garbage collector may find that out in the middle of a step."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

from dynaquant_core.comm.two_bit.sent import Steps
from dynaquant_core.hooks import OwnedHooks
from dynaquant_core.training.gradients import GradientCollector
from dynaquant_core.training.names import parameter_names


class Owner:
    """Is told of steps; in a circle, so that only the garbage collector finds it."""

    def __init__(self) -> None:
        self.told, self.itself = 0, self


def tell(owner):
    def hook(*_):
        if owner() is not None:
            owner().told += 1

    return hook


def owner_of(register):
    owner = Owner()
    owner.hooks = OwnedHooks(owner, [register(tell(weakref.ref(owner)))])
    return owner


@pytest.fixture
def optimizer():
    return torch.optim.SGD([torch.nn.Parameter(torch.ones(2))], lr=0.1)


@pytest.mark.parametrize("everywhere", [True, False])
def test_an_owner_that_goes_in_the_middle_of_a_step_does_not_end_it(optimizer, everywhere):
    register = register_optimizer_step_post_hook if everywhere else optimizer.register_step_post_hook
    collecting = register(lambda *_: gc.collect())
    following = []
    owner_of(register)
    after = register(lambda *_: following.append(1))
    optimizer.step()
    assert following == [1]
    after.remove()
    collecting.remove()


def test_what_owners_left_is_taken_off_by_the_next_and_only_that(optimizer):
    lives = owner_of(optimizer.register_step_post_hook)
    for _ in range(3):
        owner_of(optimizer.register_step_post_hook)
    gc.collect()
    newest = owner_of(optimizer.register_step_post_hook)
    assert len(optimizer._optimizer_step_post_hooks) == 2
    optimizer.step()
    newest.hooks.remove()
    newest.hooks.remove()
    optimizer.step()
    assert (lives.told, newest.told) == (2, 1)
    lives.hooks.remove()


def test_a_collector_that_was_given_up_does_not_end_a_step(optimizer):
    """As where an interrupted notebook cell has left its checkpointer in a traceback."""
    weight = optimizer.param_groups[0]["params"][0]
    weight.grad = torch.ones(2)
    model = torch.nn.ParameterDict({"weight": weight})
    first = optimizer.register_step_post_hook(lambda *_: gc.collect())
    given_up = GradientCollector([optimizer], parameter_names({"": model}))
    given_up.start()
    given_up.circle = given_up
    after = GradientCollector([optimizer], parameter_names({"": model}))
    after.start()
    del given_up
    optimizer.step()
    assert torch.equal(after.averages()["weight"], torch.ones(2))
    first.remove()
    after.close()


def test_two_bit_replicas_that_were_given_up_do_not_end_a_step(optimizer):
    class Scaler:
        def is_enabled(self):
            return True

        def get_scale(self):
            return 1.0

    first = register_optimizer_step_post_hook(lambda *_: gc.collect())
    steps = Steps(Scaler())
    steps.circle = steps
    last = register_optimizer_step_post_hook(lambda *_: None)
    del steps
    optimizer.step()
    for handle in (first, last):
        handle.remove()
