"""Models of the library transformers: a sentence encoder, and any model by its config."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from torch import Tensor, nn
from torch.nn import functional

from dynaquant_core.errors import DependencyError, ExperimentError

__all__ = ["HF", "MiniLM", "config_file"]


#: The library's class for each task.
AUTO = {
    "causal": "AutoModelForCausalLM",
    "masked": "AutoModelForMaskedLM",
    "classes": "AutoModelForSequenceClassification",
    "score": "AutoModelForSequenceClassification",
}

#: What configs call the probability of dropout.
DROPOUTS = (
    "hidden_dropout_prob", "attention_probs_dropout_prob", "resid_pdrop", "embd_pdrop", "attn_pdrop",
    "hidden_dropout", "attention_dropout", "classifier_dropout",
)  # fmt: skip


def library() -> Any:
    """The module transformers, which is an extra.

    Raises:
        DependencyError: it is not installed.
    """
    os.environ.setdefault("HF_HUB_OFFLINE", "1")  # nothing here may reach for the network
    try:
        import transformers
    except ImportError:
        raise DependencyError.of_extra(
            "models minilm and hf need the library transformers", "transformers"
        ) from None
    return transformers


def config_file(folder: Path) -> Path:
    """The file that an `HF` is made from.

    Raises:
        ExperimentError: the folder has none.
    """
    path = folder / "config.json"
    if not path.is_file():
        raise ExperimentError(f"model: {folder} has no config.json; give the folder of a saved model.")
    return path


class MiniLM(nn.Module):
    """A BERT encoder whose words are averaged to a sentence (Reimers & Gurevych 2019).

    Args:
        vocabulary: number of tokens.
        classes: of a sentence; 1: there are two sentences, and their cosine is what is predicted.
        layers, width, heads: shape of the encoder, whose MLP is four times as wide.
        dropout: probability, in attention and after each part of a layer.
        pad: the token that fills up and is not seen.

    ``forward(tokens)`` maps int64[batch, time] to logits float[batch, classes], and int64[batch, 2, time] to
    cosines float[batch].
    """

    def __init__(
        self,
        vocabulary: int,
        classes: int,
        *,
        layers: int = 6,
        width: int = 384,
        heads: int = 12,
        dropout: float = 0.1,
        pad: int = 0,
    ) -> None:
        super().__init__()
        transformers = library()
        config = transformers.BertConfig(
            vocab_size=vocabulary,
            num_hidden_layers=layers,
            hidden_size=width,
            num_attention_heads=heads,
            intermediate_size=4 * width,
            hidden_dropout_prob=dropout,
            attention_probs_dropout_prob=dropout,
            pad_token_id=pad,
        )
        self.pad = pad
        self.encoder = transformers.BertModel(config, add_pooling_layer=False)
        self.head = nn.Linear(width, classes) if classes > 1 else None

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits of a sentence's classes, or cosines of pairs."""
        pairs = tokens.dim() == 3
        sentences = self._sentences(tokens.flatten(0, 1) if pairs else tokens)
        if pairs:
            first, second = sentences.view(*tokens.shape[:2], -1).unbind(1)
            return functional.cosine_similarity(first, second)
        assert self.head is not None, "one sentence has a class"
        logits: Tensor = self.head(sentences)
        return logits

    def _sentences(self, tokens: Tensor) -> Tensor:
        seen = tokens != self.pad
        words = self.encoder(input_ids=tokens, attention_mask=seen.long()).last_hidden_state
        weights = seen.unsqueeze(-1).to(words.dtype)
        mean: Tensor = (words * weights).sum(1) / weights.sum(1).clamp(min=1)
        return mean


class HF(nn.Module):
    """A model of the library transformers, freshly initialised from a folder's ``config.json``.

    Args:
        folder: of the config.
        task: ``causal``, ``masked``, ``classes`` or ``score``.
        classes: of a text, for ``classes``.
        dropout: in place of the config's own; None: as the config says.
        pad: token that is not seen; None: all are.
        separator: token between two texts that are one, for models that tell them apart; None: no such.

    ``forward(tokens)`` maps int64[batch, time] to logits float[batch, time, vocabulary] or float[batch,
    classes], or to scores float[batch].

    Raises:
        DependencyError: the library is not installed.
        ExperimentError: there is no such config, or it has no model for the task.
    """

    def __init__(
        self,
        folder: Path,
        task: str,
        *,
        classes: int = 1,
        dropout: float | None = None,
        pad: int | None = None,
        separator: int | None = None,
    ) -> None:
        super().__init__()
        transformers = library()
        config_file(folder)
        try:
            config = transformers.AutoConfig.from_pretrained(str(folder), local_files_only=True)
            for name, value in _changes(config, task, classes, dropout, pad).items():
                setattr(config, name, value)
            self.net = getattr(transformers, AUTO[task]).from_config(config)
        except (OSError, ValueError, KeyError, TypeError) as error:
            reason = " ".join(str(error).split())
            raise ExperimentError(f"model: {folder} makes no model for {task} ({reason:.200}).") from None
        self.score, self.pad, self.separator = task == "score", pad, separator
        self.types = getattr(config, "type_vocab_size", 0) > 1

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits, or scores."""
        inputs = {"input_ids": tokens}
        if self.pad is not None:
            inputs["attention_mask"] = (tokens != self.pad).long()
        if self.types and self.separator is not None:
            ends = (tokens == self.separator).long()
            inputs["token_type_ids"] = ((ends.cumsum(1) - ends) == 1).long()
        logits: Tensor = self.net(**inputs).logits
        return logits.squeeze(-1) if self.score else logits


def _changes(config: Any, task: str, classes: int, dropout: float | None, pad: int | None) -> dict[str, Any]:
    """What of a config the experiment decides."""
    changes: dict[str, Any] = {"use_cache": False}
    if task in {"classes", "score"}:
        changes["num_labels"] = classes
        if pad is not None:
            changes["pad_token_id"] = pad
    if dropout is not None:
        changes |= {name: dropout for name in DROPOUTS if hasattr(config, name)}
    return changes
