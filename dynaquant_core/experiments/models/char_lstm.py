"""A character model with an LSTM."""

from __future__ import annotations

from torch import Tensor, nn

__all__ = ["CharLSTM"]


class CharLSTM(nn.Module):
    """Predicts the next symbol of each place.

    Args:
        classes: size of the vocabulary.
        width: of the LSTM's state; embeddings have half of it.
        layers: of the LSTM.

    ``forward(symbols)`` maps int64[batch, length] to logits float32[batch, length, classes].

    Example:
        >>> import torch
        >>> CharLSTM(65, width=16)(torch.zeros(2, 5, dtype=torch.int64)).shape
        torch.Size([2, 5, 65])
    """

    def __init__(self, classes: int, *, width: int = 128, layers: int = 1) -> None:
        super().__init__()
        self.embed = nn.Embedding(classes, max(1, width // 2))
        self.lstm = nn.LSTM(max(1, width // 2), width, num_layers=layers, batch_first=True)
        self.head = nn.Linear(width, classes)

    def forward(self, symbols: Tensor) -> Tensor:
        """Logits of the next symbols."""
        hidden, _ = self.lstm(self.embed(symbols))
        logits: Tensor = self.head(hidden)
        return logits
