"""Gradients in another guise, and layers that SAMO's kernel could not copy: what torch makes of them."""

import pytest
import torch
from torch import nn

from dynaquant_core.memory import samo
from tests.memory.gathered import DTYPES, both, counted, grads, same
from tests.memory.samo_nets import conv, loss_of


@pytest.fixture(autouse=True)
def launches(monkeypatch):
    return counted(monkeypatch)


def transposed(gradient):
    return gradient.t().contiguous().t()


def negative(gradient):
    """Memory holds the opposite, and a flag of the tensor says so."""
    return torch._neg_view(gradient.neg())


def part(gradient):
    whole = torch.zeros(3, *gradient.shape, dtype=gradient.dtype)
    whole[1] = gradient
    return whole[1]


def nothing(gradient):
    return torch._efficientzerotensor(gradient.shape, dtype=gradient.dtype)


def sparse(gradient):
    return gradient.to_sparse()


class Odd(torch.autograd.Function):
    """A weight, whose gradient comes in another guise."""

    @staticmethod
    def forward(ctx, weight, guise):
        ctx.guise = guise
        return weight.view_as(weight)

    @staticmethod
    def backward(ctx, gradient):
        return ctx.guise(gradient), None


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("guise", [transposed, negative, part, nothing, sparse])
def test_a_gradient_in_another_guise_is_what_it_is(monkeypatch, guise, dtype):
    def life():
        torch.manual_seed(0)
        model = nn.ParameterDict({"pruned": torch.randn(24, 16), "whole": torch.randn(24, 16)})
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        mask = torch.rand(24, 16) > 0.5
        handle = samo.wrap(model, optimizer, {"pruned": mask}, dtype=dtype, loss_scale=4.0)
        x = torch.randn(5, 16, dtype=dtype)
        for _ in range(2):
            found = sum((x @ Odd.apply(one, guise).t()).square().sum() for one in model.values())
            found.backward()
        return grads(handle)

    one, other = both(monkeypatch, life)
    same(one, other)
    assert any(found.any() for found in one) == (guise is not nothing)


def test_sparse_embeddings_and_numbers_without_dimensions(monkeypatch):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.table = nn.Embedding(20, 8, sparse=True)
            self.scale, self.head = nn.Parameter(torch.tensor(2.0)), nn.Linear(8, 4)

        def forward(self, tokens):
            return self.head(self.table(tokens) * self.scale)

    def life():
        model = Net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        handle = samo.wrap(model, optimizer, sparsity=0.5, dtype=torch.bfloat16, embeddings=True)
        for step in range(3):
            for _ in range(2):
                model(torch.tensor([1, 5, 5, step])).square().sum().backward()
            found = grads(handle)
            optimizer.step()
            optimizer.zero_grad()
        return [*found, *model.parameters()]

    same(*both(monkeypatch, life))


@pytest.mark.parametrize("dtype", DTYPES)
def test_whole_layers_whose_memory_runs_in_another_order_than_their_vectors(monkeypatch, dtype):
    def life():
        model = conv().to(memory_format=torch.channels_last)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        mask = {"head.weight": torch.rand(5, 16, generator=torch.Generator().manual_seed(0)) > 0.5}
        handle = samo.wrap(model, optimizer, mask, dtype=dtype, loss_scale=2.0)
        for step in range(2):
            handle.scale(loss_of(model, step)).backward()
        return grads(handle)

    same(*both(monkeypatch, life))


@pytest.mark.parametrize("write", ["strided", "negative"])
def test_a_gradient_that_somebody_wrote_is_added_to_as_it_is(monkeypatch, write):
    def life():
        torch.manual_seed(0)
        model = nn.Linear(16, 8)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        handle = samo.wrap(model, optimizer, sparsity=0.5, dtype=torch.bfloat16)
        for one in handle.parameters():
            values = torch.arange(2.0 * one.numel())[::2].view(one.shape)
            one.grad = negative(values) if write == "negative" else values
        model(torch.ones(2, 16)).sum().backward()
        return grads(handle)

    same(*both(monkeypatch, life))
