"""What changed between two checkpoints' codes: cyclic differences, and their order by source code.

Pure functions over arrays of codes (paper sec. 6), and `paper`, the codec that chains them as published.
"""

from __future__ import annotations

from dynaquant_core.delta.cyclic import cyclic_delta, undo_cyclic_delta
from dynaquant_core.delta.rearrange import group_sizes, rearrange, restore_order

__all__ = ["cyclic_delta", "group_sizes", "rearrange", "restore_order", "undo_cyclic_delta"]
