"""Options that several commands share, and how their words become settings."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from dynaquant_core.config import Bins, Config, LatticeConfig, Scale, require
from dynaquant_core.methods.registry import DEFAULT_METHOD

__all__ = [
    "BinsOption",
    "EmbeddingBinsOption",
    "ExactOption",
    "MethodOption",
    "MomentsOption",
    "ProtectOption",
    "PruneOption",
    "ScaleOption",
    "config_of",
    "method_of",
]

BinsOption = Annotated[
    str | None, typer.Option("--bins", help="Centres a tensor, 2 to 64, or bf16 or exact (dynaquant).")
]
PruneOption = Annotated[
    float | None, typer.Option("--prune", help="Share of weights set to zero, 0 to below 1 (dynaquant).")
]
ScaleOption = Annotated[
    str | None,
    typer.Option("--scale", help="Mean step in mean spreads, 1/4096 to 64, or bf16 or exact (lattice; 0.5)."),
]
ProtectOption = Annotated[
    float | None, typer.Option("--protect", help="Share of weights in bfloat16 (dynaquant).")
]
EmbeddingBinsOption = Annotated[
    int | None,
    typer.Option(
        "--embedding-bins", help="Centres of an embedding (dynaquant); default: as --bins, 16 at least."
    ),
]
MomentsOption = Annotated[
    str,
    typer.Option("--moments", help="Moments: exact, 8bit, compact, minimal, sparse, second or none."),
]
ExactOption = Annotated[
    list[str] | None,
    typer.Option("--exact", metavar="PATTERN", help="Names kept bit for bit; may be repeated."),
]
MethodOption = Annotated[
    list[str] | None,
    typer.Option(
        "--method",
        metavar="NAME|KEY=VALUE",
        help="Method, default lattice; then options, as --method dynaquant --method coder=paper.",
    ),
]


def config_of(
    *,
    bins: str | None = None,
    prune: float | None = None,
    protect: float | None = None,
    embedding_bins: int | None = None,
    scale: str | None = None,
) -> Config | LatticeConfig | None:
    """A configuration of what was given; None where nothing was, so that the method's default holds.

    Raises:
        ConfigError: a value is out of range, or they are of two methods.

    Example:
        >>> config_of(bins="8").bins, config_of(scale="0.3").scale, config_of() is None
        (8, 0.3, True)
    """
    given: dict[str, Any] = {
        "bins": None if bins is None else bins_of(bins),
        "prune": prune,
        "protect": protect,
        "embedding_bins": embedding_bins,
    }
    given = {name: value for name, value in given.items() if value is not None}
    if scale is None:
        return Config(**given) if given else None
    require(not given, f"--scale is of lattice, {', '.join(given)} of dynaquant; give one or the other.")
    return LatticeConfig(scale=scale_of(scale))


def scale_of(word: str) -> Scale:
    """A number, or the word itself; `LatticeConfig` judges it."""
    try:
        return float(word)
    except ValueError:
        return word  # type: ignore[return-value]


def bins_of(word: str) -> Bins:
    """A number of centres, or the word itself; `Config` judges it."""
    return int(word) if word.isdecimal() else word  # type: ignore[return-value]


def method_of(words: list[str] | None) -> str | dict[str, Any] | None:
    """A method's name, or a mapping of its name and options; None where nothing was given.

    Options without a name are those of the project's default.

    Raises:
        ConfigError: an option's value is not YAML.

    Example:
        >>> method_of(["dynaquant", "coder=paper"])
        {'name': 'dynaquant', 'coder': 'paper'}
        >>> method_of(None) is None
        True
    """
    if not words:
        return None
    from dynaquant_core.experiments.config.reading import read_yaml

    pairs = dict(word.split("=", 1) for word in words if "=" in word)
    names = [word for word in words if "=" not in word]
    name = names[-1] if names else DEFAULT_METHOD
    options = {key: read_yaml(value, f"--method {key}") for key, value in pairs.items()}
    return {"name": name} | options if options else name
