"""Coders that every peer can use for what it does not code itself."""

from __future__ import annotations

import time
from pathlib import Path

import torch
from coder import Meets, Note, Tensors
from safetensors.torch import load_file as load_tensors
from safetensors.torch import save_file as save_tensors
from torch import Tensor

import dynaquant_core as dq

__all__ = ["Plain", "Shared", "TorchSave"]


class Plain:
    """A safetensors file: every bit, nothing gained."""

    def write(self, tensors: Tensors, folder: Path, meets: Meets) -> Note:  # noqa: ARG002 - nothing to choose
        """Writes ``plain.safetensors``."""
        started = time.perf_counter()
        save_tensors(
            {name: tensor.contiguous() for name, tensor in tensors.items()}, folder / "plain.safetensors"
        )
        return Note.since(started)

    def read(self, folder: Path) -> dict[str, Tensor]:
        """All of it."""
        return load_tensors(folder / "plain.safetensors")


class TorchSave:
    """What everybody uses: `torch.save` of a dictionary."""

    def write(self, tensors: Tensors, folder: Path, meets: Meets) -> Note:  # noqa: ARG002 - nothing to choose
        """Writes ``plain.pt``."""
        started = time.perf_counter()
        torch.save(dict(tensors), folder / "plain.pt")
        return Note.since(started)

    def read(self, folder: Path) -> dict[str, Tensor]:
        """All of it."""
        return torch.load(folder / "plain.pt", weights_only=True)


class Shared:
    """Moments by a policy of the project's own (docs/moments.md), for peers that know weights only.

    Args:
        policy: its name.
    """

    def __init__(self, policy: str) -> None:
        self._policy = policy

    def write(self, tensors: Tensors, folder: Path, meets: Meets) -> Note:  # noqa: ARG002 - nothing to choose
        """Writes ``moments.dq``; names are PARAMETER/MOMENT, as `states` makes them."""
        started = time.perf_counter()
        state: dict[str, dict[str, Tensor]] = {}
        for name, tensor in tensors.items():
            parameter, _, moment = name.rpartition("/")
            state.setdefault(parameter, {})[moment] = tensor
        tree = {"optimizer": {"state": state, "param_groups": []}}
        dq.save_file(tree, folder / "moments.dq", moments=self._policy)
        return Note.since(started)

    def read(self, folder: Path) -> dict[str, Tensor]:
        """All of it, as the policy left it."""
        state = dq.load_file(folder / "moments.dq")["optimizer"]["state"]
        return {
            f"{parameter}/{moment}": tensor
            for parameter, moments in state.items()
            for moment, tensor in moments.items()
        }
