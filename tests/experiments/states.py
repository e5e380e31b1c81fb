"""States of a training, compared to the last bit."""

from __future__ import annotations

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
