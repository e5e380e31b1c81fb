"""The base of every section of an experiment: frozen, strict, and helpful about a misspelt key."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from dynaquant_core.config import nearest

__all__ = [
    "CorpusSection",
    "Count",
    "Number",
    "Plain",
    "Positive",
    "Section",
    "Seed",
    "Share",
    "Threshold",
    "TransformerSize",
    "Whole",
    "as_number",
    "plain",
    "require_parts",
]


def as_number(value: object) -> object:
    """YAML 1.1 reads ``1e-3`` (no dot) as text; every user means the number."""
    if isinstance(value, str):
        try:
            return float(value)
        except ValueError:
            return value
    return value


#: Whole numbers stay below it, so that a float holds each of them.
LIMIT = 2**53

#: Levels of lists and mappings in a value; more are one that holds itself.
DEPTH = 32


def plain(value: Any, depth: int = DEPTH) -> Any:
    """The value itself, where JSON can hold it and give it back: an experiment is kept as JSON.

    Raises:
        ValueError: it holds a number that is not finite, a date or another object, or itself.
    """
    if not depth:
        raise ValueError(f"lists and mappings are nested more than {DEPTH} deep, or hold themselves")
    if isinstance(value, Mapping):
        for item in value.values():
            plain(item, depth - 1)
    elif isinstance(value, (list, tuple)):
        for item in value:
            plain(item, depth - 1)
    elif isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"expected finite numbers, got {value!r}")
    elif value is not None and not isinstance(value, (bool, int, float, str)):
        raise ValueError(f"expected numbers, texts, lists and mappings, got {value!r}")
    return value


def _share_of_quality(value: float) -> float:
    if not 0.0 < value < 1.0:
        raise ValueError(f"expected a share above 0 and below 1, such as 0.05 for 5%, got {value:g}")
    return value


Plain = Annotated[Any, AfterValidator(plain)]
Number = Annotated[float, BeforeValidator(as_number), Field(ge=0.0, allow_inf_nan=False)]
Positive = Annotated[float, BeforeValidator(as_number), Field(gt=0.0, allow_inf_nan=False)]
Threshold = Annotated[float, BeforeValidator(as_number), AfterValidator(_share_of_quality)]
Share = Annotated[float, BeforeValidator(as_number), Field(ge=0.0, lt=1.0, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=1, lt=LIMIT)]
Whole = Annotated[int, Field(ge=0, lt=LIMIT)]
Seed = Annotated[int, Field(ge=0, lt=2**32)]  # what NumPy's generator takes


def require_parts(key: str) -> None:
    """Raises ValueError for a dotted key of which a part is empty."""
    if not all(part.strip() for part in key.split(".")):
        raise ValueError(f"{key!r} is no key: give names with dots between, as method.sigma")


class Section(BaseModel):
    """A mapping of the YAML file.  Values keep their YAML type: ``steps: "100"`` is refused."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid")

    @model_validator(mode="before")
    @classmethod
    def _known_keys(cls, data: Any) -> Any:
        if not isinstance(data, Mapping):
            raise ValueError(f"expected a mapping, got {data!r}")
        known = list(cls.model_fields)
        for key in data:
            if key not in known:
                raise ValueError(f"unknown key {key!r}; {nearest(str(key), known)}")
        return data


class TransformerSize(Section):
    """What the transformers have in common."""

    layers: Count
    width: Count
    heads: Count = 4
    dropout: Share = 0.0

    @model_validator(mode="after")
    def _heads_divide_the_width(self) -> TransformerSize:
        if self.width % self.heads:
            raise ValueError(f"width {self.width} is not a multiple of heads {self.heads}")
        return self


class CorpusSection(Section):
    """What data cut from a text have in common.

    Args:
        source: a path (tried as given, then under the data root), a pattern of files, or ``stdlib``.
        max_bytes: the corpus is cut after about this many bytes.
        batch: sequences a training step.
        context: symbols a sequence.
    """

    source: str
    max_bytes: Count = 8_000_000
    batch: Count = 16
    context: Count = 64
