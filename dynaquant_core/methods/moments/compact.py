"""The policy ``"compact"``: moments in 4 bits."""

from __future__ import annotations

from torch import Tensor

from dynaquant_core.methods.moments.policy import MomentsPolicy

__all__ = ["Compact"]


class Compact(MomentsPolicy):
    """Moments in logarithmic blocks of 4 bits, coded against the base's codes where that is smaller.

    Card (docs/moments.md says on what it was measured):

    * bytes an entry: 0.34 in a chain, 0.42 in a key; the writer holds half a byte an entry.
    * lost: first moments are within 43% of each value or, below 1.2% of their block's largest, zero; second
      moments within 5% to 43%, by what their block spans, and always positive (`quantize.blocks`, `FOUR`).
    * restore cost: not visible.

    Example:
        >>> import torch
        >>> from dynaquant_core.methods import Hints
        >>> policy = Compact()
        >>> draft = policy.draft({"exp_avg": torch.ones(300)}, None, policy.config({}), Hints())
        >>> [stream.kind for stream in draft.encode()[0]]
        ['layout', 'scales', 'pool']
    """

    name = "compact"

    def first(self, tensor: Tensor) -> str:  # noqa: ARG002
        """4-bit blocks."""
        return "S"

    def second(self, tensor: Tensor) -> str:  # noqa: ARG002
        """4-bit blocks."""
        return "s"
