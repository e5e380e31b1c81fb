"""The policy ``"second"``: second moments only."""

from __future__ import annotations

from torch import Tensor

from dynaquant_core.methods.moments.minimal import Minimal

__all__ = ["SecondOnly"]


class SecondOnly(Minimal):
    """Second moments as the product of rows and columns; first moments come back as zeros.

    Card (docs/moments.md says on what it was measured):

    * bytes an entry: 0.0025; of an optimizer with momentum only: none.
    * lost: first moments, momentum of SGD included.  The optimizer's steps grow back from nothing over
      1 / (1 - beta1) steps, ten as a rule, and so many steps of movement are lost at each restore.
    * restore cost: about that share of the interval's progress; visible where restores are few steps apart.

    Example:
        >>> import torch
        >>> SecondOnly().letter("state.w.momentum_buffer", torch.randn(64, 64))
        'z'
    """

    name = "second"
    product = "p"
    loss = "first moments and momentum are not stored: a restore begins them at zero"

    def first(self, tensor: Tensor) -> str:  # noqa: ARG002
        """Zeros."""
        return "z"
