"""The method ``zstd``: every tensor's bytes under a general-purpose compressor."""

from __future__ import annotations

from typing import Any

from dynaquant_core.coding import codec_by_name
from dynaquant_core.coding.zstd import LEVELS, compress
from dynaquant_core.config import require
from dynaquant_core.methods.whole import Whole, Words

__all__ = ["ZstdBytes"]


class ZstdBytes(Whole):
    """Zstandard on each tensor's bytes, one frame a tensor, without a base.

    Card: nothing is lost.  Trained float32 weights shrink by less than a tenth (their mantissas are noise),
    equal values to nearly nothing.  It is the usual way to make a checkpoint smaller, and the floor that any
    other method has to beat.

    Args:
        level: zstd's, 1 to 22; higher is slower and hardly smaller.

    Raises:
        ConfigError: ``level`` is not a whole number of that range.

    Example:
        >>> import torch
        >>> from dynaquant_core.methods.base import Hints
        >>> method = ZstdBytes(level=19)
        >>> draft = method.draft({"w": torch.zeros(1000)}, None, method.config({}), Hints())
        >>> draft.size < 40
        True
    """

    name = "zstd"

    def __init__(self, *, level: int = 3) -> None:
        good = type(level) is int and level in LEVELS
        require(good, f"method zstd: level must be a whole number from 1 to {max(LEVELS)}, got {level!r}.")
        self.level = level

    def __repr__(self) -> str:
        return f"ZstdBytes(level={self.level})"

    def options(self) -> dict[str, Any]:
        """The level; readers do without."""
        return {"level": self.level}

    def encoded(self, words: Words) -> tuple[int, bytes]:
        """One frame, which the codec `zstd` reads; nothing for no words."""
        payload = compress(words.view("uint8"), self.level) if words.size else b""
        return codec_by_name("zstd").id, payload
