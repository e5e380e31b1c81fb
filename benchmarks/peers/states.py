"""A recorded state as the two sets of tensors that a peer is given, and what they take uncompressed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from coder import Tensors
from torch import Tensor

from dynaquant_core.state.roles import assign_roles
from dynaquant_core.state.tree import flatten

__all__ = ["State", "nbytes", "same_bits", "state_of"]


@dataclass(frozen=True, slots=True)
class State:
    """One checkpoint, by the project's own table of roles.

    Counters, schedule and random streams are in neither: nobody compresses them.

    Args:
        weights: by the model's own names, buffers included; tied ones once.
        moments: PARAMETER/MOMENT -> tensor.
    """

    weights: dict[str, Tensor]
    moments: dict[str, Tensor]

    def parts(self) -> dict[str, dict[str, Tensor]]:
        """Role -> its tensors, those without any left out."""
        both = {"weight": self.weights, "moment": self.moments}
        return {role: tensors for role, tensors in both.items() if tensors}


def state_of(tree: Mapping[str, Any]) -> State:
    """The checkpoint in the tree of `training.capture`; its tensors are copied."""
    leaves = flatten({"model": tree["model"], "optimizer": tree.get("optimizer", {})}).leaves
    roles = assign_roles(leaves)
    weights, moments = {}, {}
    for leaf in leaves:
        tensor = leaf.tensor.detach().cpu().clone(memory_format=torch.contiguous_format)
        if roles[leaf.name] == "weight" and leaf.path[0] == "model":
            weights[".".join(map(str, leaf.path[1:]))] = tensor
        elif roles[leaf.name] == "moment":
            *_, parameter, moment = leaf.path
            moments[f"{parameter}/{moment}"] = tensor
    return State(weights, moments)


def nbytes(tensors: Tensors) -> int:
    """Bytes of tensors in their own dtypes."""
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())


def same_bits(one: Tensors, other: Tensors) -> bool:
    """Whether names, dtypes, shapes and every bit are the same."""
    return one.keys() == other.keys() and all(
        tensor.dtype == other[name].dtype
        and tensor.shape == other[name].shape
        and torch.equal(_bits(tensor), _bits(other[name]))
        for name, tensor in one.items()
    )


def _bits(tensor: Tensor) -> Tensor:
    return tensor.contiguous().reshape(-1).view(torch.uint8)
