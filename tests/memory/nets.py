"""Small networks, and one step of training them."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

from dynaquant_core.experiments.models.resnet import ResNet

#: Of `smaq.apply`: nothing but feature maps is coded, and nothing at all.
ONLY_MAPS = {"gradient_maps": False, "gradients": False, "weights": False, "optimizer_state": False}
OFF = ONLY_MAPS | {"feature_maps": None}


def conv_net(seed=0):
    torch.manual_seed(seed)
    return ResNet(widths=(8, 16, 32))


def mlp(seed=0, act=nn.GELU):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(64, 96), act(), nn.Linear(96, 64), act(), nn.Linear(64, 4))


def images(step=0, count=16):
    draw = torch.Generator().manual_seed(1000 + step)
    return torch.randn(count, 3, 32, 32, generator=draw), torch.randint(10, (count,), generator=draw)


def rows(step=0, count=64):
    draw = torch.Generator().manual_seed(1000 + step)
    return torch.randn(count, 64, generator=draw), torch.randint(4, (count,), generator=draw)


def train(model, optimizer, batch):
    inputs, labels = batch
    loss = functional.cross_entropy(model(inputs), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.item()


def bits(tensors):
    return [tensor.detach().clone() for tensor in tensors]
