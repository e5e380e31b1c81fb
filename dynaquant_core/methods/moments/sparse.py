"""The policy ``"sparse"``: the few largest elements of first moments, second moments as a product (ours)."""

from __future__ import annotations

from torch import Tensor

from dynaquant_core.methods.moments.forms import Coded
from dynaquant_core.methods.moments.minimal import Minimal
from dynaquant_core.quantize.ternary import FEW, encode_ternary

__all__ = ["Sparse"]


class Sparse(Minimal):
    """As ``minimal``, with signs of one or two elements in a hundred, which carry the movement of all.

    Card (docs/moments.md says on what it was measured):

    * bytes an entry: 0.02.
    * lost: all of a first moment but its few largest elements.  They come back so large that nothing of the
      movement along the first moment is lost; the rest of what comes back is noise of about eight times its
      energy, which training takes out as it does that of the weights.
    * restore cost: not visible on a GPT; on a ResNet ten restores in 400 steps cost 0.5 to 2%.

    Momentum of SGD is a first moment.  Tensors of one dimension keep 4 and 8 bits instead.

    Example:
        >>> import torch
        >>> coded = Sparse().encoded("state.w.exp_avg", torch.randn(64, 256))
        >>> 0.005 < float((coded.codes != 1).mean()) < 0.05
        True
    """

    name = "sparse"
    product = "p"

    def encoded(self, name: str, tensor: Tensor, key: int | None = None) -> Coded:
        """Ternary forms keep fewer signs; all others are those of ``minimal``."""
        if self.letter(name, tensor) == "t":
            return Coded("t", *encode_ternary(tensor, FEW))
        return super().encoded(name, tensor, key)
