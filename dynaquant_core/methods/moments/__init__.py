"""What a checkpoint keeps of an optimizer's moments: one policy a module, behind the method protocol.

`eight_bit` is the default.  `compact`, `minimal`, `second` and `none` keep less and less (docs/moments.md has
a card of each); they share `forms` (how one tensor is written), `draft`, `streams`, `reader` and `held`.
``"exact"`` is the method of that name.
"""

from __future__ import annotations

from dynaquant_core.methods.moments.eight_bit import BlocksDraft, BlocksReference, LogBlocks
from dynaquant_core.methods.moments.policies import MOMENTS, least_bytes, moments_method, stay_exact

__all__ = [
    "MOMENTS",
    "BlocksDraft",
    "BlocksReference",
    "LogBlocks",
    "least_bytes",
    "moments_method",
    "stay_exact",
]
