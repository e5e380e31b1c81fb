"""The optimizer and the learning rate of each step, from their section of the YAML file."""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.optim.lr_scheduler import LambdaLR

from dynaquant_core.experiments.config.parts import OptimizerSection

__all__ = ["keeps_moments", "learning_rate", "make_optimizer", "make_scheduler"]


def learning_rate(section: OptimizerSection, step: int, steps: int) -> float:
    """Learning rate of a step (0 is the first of ``steps``): linear warm-up, then a cosine or a constant.

    Example:
        >>> section = OptimizerSection(lr=1e-3, min_lr=1e-4)
        >>> [round(learning_rate(section, step, 100), 6) for step in (0, 50, 100)]
        [0.001, 0.00055, 0.0001]
    """
    if step < section.warmup:
        return section.lr * (step + 1) / section.warmup
    if section.schedule == "constant":
        return section.lr
    done = min(1.0, (step - section.warmup) / max(1, steps - section.warmup))
    return section.min_lr + (section.lr - section.min_lr) * 0.5 * (1.0 + math.cos(math.pi * done))


def make_optimizer(section: OptimizerSection, model: nn.Module) -> torch.optim.Optimizer:
    """The optimizer of all parameters; weight decay spares what is less than 2-D under AdamW (as usual)."""
    if section.name == "sgd":
        return torch.optim.SGD(
            model.parameters(),
            lr=section.lr,
            momentum=section.momentum,
            nesterov=section.nesterov,
            weight_decay=section.weight_decay,
        )
    decayed = [parameter for parameter in model.parameters() if parameter.dim() >= 2]
    spared = [parameter for parameter in model.parameters() if parameter.dim() < 2]
    groups = [
        {"params": decayed, "weight_decay": section.weight_decay},
        {"params": spared, "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=section.lr, betas=(section.betas[0], section.betas[1]))


def keeps_moments(section: OptimizerSection) -> bool:
    """Whether the optimizer keeps averages of each parameter's gradients.

    Example:
        >>> keeps_moments(OptimizerSection(lr=0.1, name="sgd")), keeps_moments(OptimizerSection(lr=1e-3))
        (False, True)
    """
    return section.name != "sgd" or section.momentum > 0


def make_scheduler(section: OptimizerSection, optimizer: torch.optim.Optimizer, steps: int) -> LambdaLR:
    """A scheduler that follows `learning_rate`; call ``step()`` after each optimizer step."""
    return LambdaLR(optimizer, lambda step: learning_rate(section, step, steps) / section.lr)
