"""An optimizer whose averages are of a class that takes no part in arithmetic, as those of 8 bits are."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only

__all__ = ["Packed", "PackedMomentum"]

#: What such a tensor lets be done to it: moved and copied as a whole.
WHOLE = (torch.ops.aten.detach, torch.ops.aten.clone, torch.ops.aten._to_copy, torch.ops.aten.alias)


class Packed(Tensor):
    """Reports the shape and dtype of what it stands for, and holds a byte a value and one scale."""

    @staticmethod
    def __new__(cls, codes, scale):
        return Tensor._make_wrapper_subclass(cls, codes.shape, dtype=torch.float32, device=codes.device)

    def __init__(self, codes, scale):
        self.codes, self.scale = codes, scale

    @classmethod
    def of(cls, values):
        scale = values.abs().max().clamp(min=1e-12) / 127
        return cls((values / scale).round().to(torch.int8), scale)

    def unpacked(self):
        return self.codes.float() * self.scale

    def __repr__(self):
        return f"Packed({tuple(self.shape)})"

    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
        if getattr(function, "overloadpacket", None) in WHOLE:
            return Packed(args[0].codes.clone(), args[0].scale.clone())
        raise NotImplementedError(f"Packed: {function} is not implemented")


class PackedMomentum(torch.optim.Optimizer):
    """Gradient descent along an average that is packed between steps."""

    def __init__(self, weights, lr=1e-2):
        super().__init__(weights, {"lr": lr})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for weight in (one for one in group["params"] if one.grad is not None):
                state = self.state[weight]
                average = state["exp_avg"].unpacked() if state else torch.zeros_like(weight)
                average.lerp_(weight.grad, 0.1)
                weight.sub_(average, alpha=group["lr"])
                state["exp_avg"] = Packed.of(average)

    def values(self):
        """What is stored of each average."""
        return [tree_map_only(Packed, Packed.unpacked, held) for held in self.state_dict()["state"].values()]


torch.serialization.add_safe_globals([Packed])
