"""The method ``none``: every tensor's bytes as they are."""

from __future__ import annotations

from dynaquant_core.coding import codec_by_name
from dynaquant_core.methods.whole import Whole, Words

__all__ = ["NoCompression"]


class NoCompression(Whole):
    """Raw bytes: what a checkpoint is without any of this.

    Card: costs the state's own size, one copy in memory and nothing else; nothing is lost.  Checksums, the
    atomic commit and loading by name are the store's, so it measures those alone.

    Example:
        >>> import torch
        >>> from dynaquant_core.methods.base import Hints
        >>> method = NoCompression()
        >>> draft = method.draft({"w": torch.zeros(1000)}, None, method.config({}), Hints())
        >>> draft.size  # and a byte of layout
        4001
    """

    name = "none"

    def encoded(self, words: Words) -> tuple[int, bytes]:
        """The words, raw."""
        codec = codec_by_name("raw")
        return codec.id, codec.encode(words)
