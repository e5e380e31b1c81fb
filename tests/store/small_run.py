"""A small network in training, for stores."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from dynaquant_core.training.capture import capture
from dynaquant_core.training.subject import Subject


class Run:
    """A small network in training; its state as a trainer would save it."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.model = nn.Sequential(
            nn.Embedding(50, 64), nn.Linear(64, 96), nn.ReLU(), nn.LayerNorm(96), nn.Linear(96, 50)
        )
        self.model.register_buffer("table", torch.linspace(0, 1, 96))
        self.model.register_buffer("odd", torch.tensor([1.0, float("nan")] * 200).view(20, 20))
        self.model.register_buffer("steps", torch.tensor(0))
        self.model.register_buffer("scale", torch.tensor(0.25))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=2e-3)
        self.step = 0

    def train(self, steps: int = 3) -> int:
        """Trains on; returns the number of steps so far."""
        for _ in range(steps):
            generator = torch.Generator().manual_seed(self.step)
            tokens = torch.randint(0, 50, (32,), generator=generator)
            loss = nn.functional.cross_entropy(self.model(tokens), (3 * tokens + 1) % 50)
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            self.step += 1
            self.model.steps += 1
        return self.step

    def named(self) -> dict[str, Any]:
        """As the project's own trainer names things."""
        tree = capture(Subject(self.model, self.optimizer), self.step)
        return {key: tree[key] for key in ("model", "optimizer", "step")}

    def numbered(self) -> dict[str, Any]:
        """As torch names things."""
        return {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict(), "step": self.step}

    def resume(self, state: dict[str, Any]) -> None:
        """Goes on from a numbered state."""
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.step = state["step"]
