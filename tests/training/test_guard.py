# ruff: noqa: NPY002 - the legacy stream is one of those that are put back
import random
import signal

import numpy as np
import pytest
import torch
from torch import nn

from dynaquant_core.training.guard import untouched
from dynaquant_core.training.held import same_bits, write
from dynaquant_core.training.rng import put_rng_back, rng_state
from tests.training.models import Net, bits, seed_everything


def everything(model):
    flags = [module.training for module in model.modules()]
    return bits([model.state_dict(), dict(model.named_buffers()), rng_state(), flags])


def disturb(model):
    """What a careless evaluation does."""
    random.random()
    np.random.rand(3)
    model.body.eval()
    model.norm.train()
    model(torch.randn(8, 16))
    model.train()
    model(torch.randn(8, 16))
    model.body[0].eval()


def test_streams_flags_and_buffers_come_back():
    seed_everything()
    model = Net()
    model.body[3].eval()  # a flag of its own, as with a frozen layer
    before = everything(model)
    with untouched([model]):
        disturb(model)
        assert everything(model) != before
    assert everything(model) == before


def test_they_come_back_when_the_body_raises():
    model = Net()
    before = everything(model)

    def fail():
        disturb(model)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError), untouched([model]):
        fail()
    assert everything(model) == before


def test_replaced_added_and_deleted_buffers_come_back_as_the_same_objects():
    model = Net()
    model.register_buffer("cache", torch.tensor([float("nan"), -0.0]), persistent=False)
    mean, cache = model.norm.running_mean, model.cache
    before = everything(model)
    with untouched([model]):
        model.norm.running_mean = torch.ones(32)
        model.cache[1] = 0.0
        del model.seen
        model.register_buffer("new", torch.zeros(2))
    assert model.norm.running_mean is mean
    assert model.cache is cache
    assert everything(model) == before


def test_buffers_that_did_not_change_are_not_written():
    model = Net()
    version = model.norm.running_mean._version
    with untouched([model]):
        model.eval()
    assert model.norm.running_mean._version == version


def test_a_module_used_twice_and_no_buffers():
    shared = nn.Linear(2, 2)
    with untouched([nn.Sequential(shared, shared), shared]):
        shared.eval()
    assert shared.training


def test_random_streams_continue_identically():
    seed_everything(3)
    random.gauss(0, 1)  # leaves a second normal number in store
    np.random.randn()
    state = rng_state()
    first = [random.gauss(0, 1), np.random.randn(), torch.rand(2).tolist()]
    put_rng_back(state)
    assert [random.gauss(0, 1), np.random.randn(), torch.rand(2).tolist()] == first


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.bool, torch.complex64])
def test_same_bits(dtype):
    tensor = torch.ones(3, 2, dtype=dtype)
    assert same_bits(tensor, tensor.clone())
    assert same_bits(tensor.t(), tensor.t().clone())
    other = tensor.clone()
    other[0, 0] = 0
    assert not same_bits(tensor, other)


def test_same_bits_tells_signed_zeros_and_accepts_nan():
    assert not same_bits(torch.tensor(0.0), torch.tensor(-0.0))
    assert same_bits(torch.tensor(float("nan")), torch.tensor(float("nan")))


def test_a_buffer_put_into_a_module_without_any_is_dropped():
    model = nn.Sequential(nn.Linear(2, 2))
    before = list(model.state_dict())
    with untouched([model]):
        model[0].register_buffer("new", torch.zeros(2))
        model.register_buffer("new", torch.zeros(2))
    assert list(model.state_dict()) == before


@pytest.mark.parametrize("size", [(1,), (4, 4)])
def test_a_buffer_that_was_resized_in_place_has_its_size_and_bits_again(size):
    model = Net()
    model.register_buffer("cache", torch.arange(6.0).reshape(2, 3).t())
    cache, before = model.cache, everything(model)
    with untouched([model]):
        model.cache.resize_(size).fill_(9)
    assert model.cache is cache
    assert cache.stride() == (1, 3)
    assert everything(model) == before


class Interrupted(nn.Linear):
    """Gets a Ctrl-C when its training flag is set for the second time."""

    left = 2

    def __setattr__(self, name, value):
        if name == "training" and "training" in self.__dict__:
            self.left -= 1
            if self.left == 0:
                signal.raise_signal(signal.SIGINT)
        super().__setattr__(name, value)


def test_a_ctrl_c_meanwhile_is_raised_when_everything_is_back():
    model = nn.Sequential(Net(), Interrupted(2, 2))
    before = everything(model)

    def run():
        with untouched([model]):
            disturb(model[0])
            model[1].eval()

    with pytest.raises((KeyboardInterrupt, SystemExit)):  # the latter where Composer is: it has a handler
        run()
    assert everything(model) == before


def test_what_was_expanded_is_written_once():
    rows = torch.zeros(1, 3, 1).expand(4, 3, 2)
    write(rows, torch.arange(3.0)[:, None].expand(4, 3, 2))
    assert rows[2, :, 1].tolist() == [0, 1, 2]
