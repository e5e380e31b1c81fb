"""Matrix factorisation: a rating as the product of a user's vector and an item's."""

from __future__ import annotations

from torch import Tensor, nn

__all__ = ["Factorisation"]


class Factorisation(nn.Module):
    """Predicts ratings.

    Args:
        users, items: how many.
        rank: numbers in each vector; they begin normal, and so that a product has standard deviation 0.1.

    ``forward(pairs)`` maps int64[batch, 2], a user and an item each, to ratings float32[batch].

    Example:
        >>> import torch
        >>> Factorisation(3, 5, rank=2)(torch.tensor([[0, 4], [2, 1]])).shape
        torch.Size([2])
    """

    def __init__(self, users: int, items: int, *, rank: int) -> None:
        super().__init__()
        self.users, self.items = nn.Embedding(users, rank), nn.Embedding(items, rank)
        for table in (self.users, self.items):
            nn.init.normal_(table.weight, std=(0.1 / rank**0.5) ** 0.5)

    def forward(self, pairs: Tensor) -> Tensor:
        """The ratings of some pairs."""
        product: Tensor = self.users(pairs[:, 0]) * self.items(pairs[:, 1])
        return product.sum(-1)
