"""Runs the command line in this process and looks at what a shell would see."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from dynaquant_core.cli import main
from dynaquant_core.store import CheckpointStore


@dataclass(frozen=True)
class Outcome:
    """Exit status, stdout and stderr of one command."""

    status: int
    out: str
    err: str

    def json(self) -> Any:
        return json.loads(self.out)

    def error(self) -> str:
        """The one line that a failed command ends in; nothing like a traceback may be near it."""
        assert "Traceback" not in self.err
        lines = [line for line in self.err.splitlines() if line.startswith("dynaquant: error: ")]
        assert len(lines) == 1, self.err
        assert self.err.splitlines()[-1] == lines[0]
        return lines[0]


class Shell:
    """Calls ``main`` with the words of a command line."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys

    def __call__(self, *words: object) -> Outcome:
        self._capsys.readouterr()
        status = main([str(word) for word in words])
        captured = self._capsys.readouterr()
        return Outcome(status, captured.out, captured.err)


def training_state(seed: int = 0) -> dict[str, Any]:
    """A model and an Adam state after one real step."""
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(48, 64), nn.LayerNorm(64), nn.Linear(64, 32))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    model(torch.randn(16, 48)).square().mean().backward()
    optimizer.step()
    return {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": 7, "note": "first"}


def filled_store(folder: Path, steps: tuple[int, ...] = (10, 20, 30)) -> Path:
    """A store with a key and deltas of a model that really trains."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(48, 64), nn.LayerNorm(64), nn.Linear(64, 32))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    store = CheckpointStore(folder)
    for step in range(1, max(steps) + 1):
        optimizer.zero_grad()
        model(torch.randn(16, 48)).square().mean().backward()
        optimizer.step()
        if step in steps:
            store.save(step, {"model": model.state_dict(), "optimizer": optimizer.state_dict()})
    return folder


def checkpoint_files(folder: Path) -> list[Path]:
    """The checkpoints of a store, oldest first."""
    return sorted(folder.glob("*.dq"))
