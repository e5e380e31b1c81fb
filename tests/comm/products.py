"""A model whose gradients are given, and the model wrapped for the exchange: what two-bit tests train."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

SIZES = {"a": (17,), "b": (1,), "c": (5, 8), "d": (3, 11), "e": (16,)}
#: Threshold of each parameter where they differ, and of negative sums.
BY_NAME = {"c": 0.1, "e": 2.0, "*": 0.5}
BELOW = 0.25


class Products(nn.Module):
    """Its gradient with respect to each parameter is the input of that name."""

    def __init__(self, dtype=torch.float32):
        super().__init__()
        for name, shape in SIZES.items():
            self.register_parameter(name, nn.Parameter(torch.zeros(shape, dtype=dtype)))

    def forward(self, inputs):
        # Used in an order that is not the order of registration, so that DDP builds its buckets anew.
        return sum((self.get_parameter(name) * inputs[name]).sum() for name in sorted(inputs, reverse=True))


def gradients(rank, step, dtype=torch.float32):
    """The gradients of a rank at a step, the same whoever asks."""
    draw = torch.Generator().manual_seed(1000 * rank + step)
    return {name: torch.randn(shape, generator=draw).to(dtype) for name, shape in SIZES.items()}


def wrapped(dtype=torch.float32, buckets=1, **options):
    """A DDP model; ``buckets`` above 1 cuts it into small ones."""
    cap = 25 if buckets == 1 else 1e-4
    return DistributedDataParallel(Products(dtype), bucket_cap_mb=cap, **options)


def told(model):
    return {
        name: None if p.grad is None else p.grad.float().flatten().tolist()
        for name, p in model.named_parameters()
    }
