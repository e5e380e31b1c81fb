"""LC-Checkpoint (arXiv 2009.13003): a change by its exponents, the largest first, under Huffman.

`method` is the method, `links` the streams of one tensor's change, `tables` the Huffman tables that a chain
gathers.
"""

from __future__ import annotations

from dynaquant_core.methods.lc.method import Lc, LcConfig

__all__ = ["Lc", "LcConfig"]
