"""The policy ``"none"``: no moment is kept, only how large second moments are."""

from __future__ import annotations

from torch import Tensor

from dynaquant_core.methods.moments.policy import MomentsPolicy

__all__ = ["Dropped"]


class Dropped(MomentsPolicy):
    """First moments come back as zeros, every second moment as its mean over the tensor.

    Card (docs/moments.md says on what it was measured):

    * bytes an entry: none that count; one byte a tensor of second moments.
    * lost: everything but how large the second moments of each tensor are.  The optimizer re-warms by itself:
      first moments over 1 / (1 - beta1) steps, second moments over 1 / (1 - beta2), by its own averaging.
    * restore cost: more than that of ``second``, about twice where second moments have a long memory.

    Why not zeros: with its step count kept, Adam would divide by second moments far too small and take steps
    several times the learning rate; with the count reset it would step by the full rate in every element,
    noise included, wherever the schedule is.  With the mean in place steps begin small and need no warm-up of
    the learning rate, and the state loads into any optimizer as it is.  Adagrad never forgets: it does not
    re-warm.

    Example:
        >>> import torch
        >>> Dropped().letter("state.w.exp_avg_sq", torch.rand(64, 64))
        'f'
    """

    name = "none"
    loss = "optimizer moments are not stored: a restore begins them at zero and at one value a tensor"

    def first(self, tensor: Tensor) -> str:  # noqa: ARG002
        """Zeros."""
        return "z"

    def second(self, tensor: Tensor) -> str:  # noqa: ARG002
        """The mean of all elements."""
        return "f"

    def factor(self, tensor: Tensor) -> str:  # noqa: ARG002
        """The mean of all elements."""
        return "f"
