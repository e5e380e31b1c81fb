"""SmaQ: what a training holds (feature maps, gradients, weights, optimizer state) in about 6.5 bits a value.

Example:
    >>> import torch
    >>> from dynaquant_core.memory import smaq
    >>> net = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.GELU(), torch.nn.Linear(64, 1))
    >>> handle = smaq.apply(net, torch.optim.AdamW(net.parameters()))
    >>> handle.remove()
"""

from __future__ import annotations

from dynaquant_core.memory.smaq.codec import PackedCodes, SmaQ
from dynaquant_core.memory.smaq.format import Format, Packed
from dynaquant_core.memory.smaq.formats import FORMATS, Cast, make_format
from dynaquant_core.memory.smaq.s2fp8 import S2FP8
from dynaquant_core.memory.smaq.training import Handle, apply

__all__ = [
    "FORMATS",
    "S2FP8",
    "Cast",
    "Format",
    "Handle",
    "Packed",
    "PackedCodes",
    "SmaQ",
    "apply",
    "make_format",
]
