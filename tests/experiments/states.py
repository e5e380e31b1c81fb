"""States of a training, compared to the last bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch


def assert_same(one: Any, other: Any) -> None:
    if isinstance(one, dict):
        assert one.keys() == other.keys()
        for key in one:
            assert_same(one[key], other[key])
    elif isinstance(one, (list, tuple)):
        assert len(one) == len(other)
        for pair in zip(one, other, strict=True):
            assert_same(*pair)
    elif hasattr(one, "shape"):
        assert torch.equal(torch.as_tensor(one), torch.as_tensor(other))
    else:
        assert one == other


def cut_short(diary: Path) -> None:
    """Takes the final event out, as if the command had died before the end."""
    lines = diary.read_text(encoding="utf-8").splitlines(keepends=True)
    diary.write_text("".join(line for line in lines if '"final"' not in line), encoding="utf-8")
