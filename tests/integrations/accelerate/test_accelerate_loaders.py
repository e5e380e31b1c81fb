"""What ``evaluate`` reads of prepared loaders shows nowhere in the training."""

import itertools

import pytest
import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch import nn
from torch.utils.data import DataLoader

from dynaquant_accelerate import install
from tests.integrations.accelerate.conftest import forget

BATCHES = 10


def read_all(losses, given):
    return list(losses(given.held_out))


def leaves(losses, given):
    found = []
    for loss in losses(given.held_out):
        found.append(loss)
        if len(found) == 4:
            break
    return found


def begins(losses, given):
    return list(losses(itertools.islice(given.held_out, 4)))


def gives(losses, given):
    """A value at a time, which are asked for when `evaluate` has returned."""
    yield from losses(itertools.islice(given.held_out, 4))


def reads_what_is_trained(losses, given):
    """Its epoch is not over because a copy of it has ended."""
    return list(losses(given.training))


class Run:
    """Three epochs with gradients of four batches a step, of which the last step has two."""

    def __init__(self, folder, reading):
        forget()
        self.accelerator = Accelerator(cpu=True, gradient_accumulation_steps=4)
        set_seed(0)
        model = nn.Linear(16, 16)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        loaders = [DataLoader(torch.randn(8 * BATCHES, 16), 8, shuffle=shuffle) for shuffle in (True, False)]
        self.model, optimizer, self.training, self.held_out = self.accelerator.prepare(
            model, optimizer, *loaders
        )
        if reading is not None:

            def evaluate(model):
                return reading(lambda batches: (float(self.loss(model, x)) for x in batches), self)

            install(self.accelerator, evaluate=evaluate)
        self.orders, self.steps = [], 0
        for epoch in range(3):
            for batch in self.training:
                self.orders.append(batch.sum().item())
                with self.accelerator.accumulate(self.model):
                    self.accelerator.backward(self.loss(self.model, batch))
                    optimizer.step()
                    optimizer.zero_grad()
                self.steps += self.accelerator.sync_gradients
                if self.accelerator.sync_gradients and self.steps in (1, 5):
                    self.accelerator.save_state(str(folder / f"{reading}-{epoch}"))
        self.accelerator.end_training()

    @staticmethod
    def loss(model, batch):
        return (model(batch) - batch).square().mean()


@pytest.mark.parametrize("reading", [read_all, leaves, begins, gives, reads_what_is_trained])
def test_a_loader_that_evaluate_reads_leaves_the_training_as_it_is(tmp_path, reading):
    plain = Run(tmp_path / "plain", None)
    ours = Run(tmp_path / "ours", reading)
    assert plain.steps == ours.steps == 9
    assert plain.orders == ours.orders
    assert torch.equal(plain.model.weight, ours.model.weight)
    assert ours.accelerator.gradient_state.active_dataloader is None
