"""The policy ``"minimal"``: first moments as signs, second moments as levels of a product (ours)."""

from __future__ import annotations

from typing import ClassVar, Final

from torch import Tensor

from dynaquant_core.methods.moments.forms import Coded, encoded
from dynaquant_core.methods.moments.policy import MomentsPolicy, worth_factoring
from dynaquant_core.quantize.factors import step_energy

__all__ = ["Minimal"]

#: A product that would make the energy of steps more than this many times as large is not taken.
MOST_ENERGY: Final = 8.0
#: Forms of a second moment as a product.
PRODUCTS: Final = "pq"


class Minimal(MomentsPolicy):
    """First moments ternary, second moments as levels of a product of rows and columns.

    Card (docs/moments.md says on what it was measured):

    * bytes an entry: 0.08, nearly all of it signs.
    * lost: which elements of a first moment are large among those kept, and the small ones; what the product
      of its rows and columns, and a level an element, do not tell of a second moment (a factor of 1.3, root
      mean square; without levels 1.5 to 2.3).  Nothing of the movement along the first moment is lost
      (`quantize.ternary`).
    * restore cost: ten of a GPT under coded weights .3%, on a ResNet under SGD nothing that shows.

    Momentum of SGD is a first moment.  Tensors of one dimension keep 4 and 8 bits instead.  A second moment
    that is no product, so that steps after a restore would leap, keeps 4 bits.

    Example:
        >>> import torch
        >>> Minimal().letter("state.w.exp_avg", torch.randn(64, 64))
        't'
    """

    name = "minimal"
    #: The form of a second moment that is close to a product.
    product: ClassVar[str] = "q"

    def first(self, tensor: Tensor) -> str:
        """Ternary; 4-bit blocks where rows and columns would be as many values as there are."""
        return "t" if worth_factoring(tensor) else "S"

    def second(self, tensor: Tensor) -> str:
        """A product of rows and columns; 8-bit blocks where these would be as many."""
        return self.product if worth_factoring(tensor) else "e"

    def encoded(self, name: str, tensor: Tensor, key: int | None = None) -> Coded:
        """A moment in its form; in 4-bit blocks where its product would be far too small (`MOST_ENERGY`)."""
        found = super().encoded(name, tensor, key)
        if found.letter in PRODUCTS and step_energy(tensor, found.factors, found.scales) > MOST_ENERGY:
            return encoded(tensor, "s", key)
        return found
