"""What the publications report of their own models, to be read beside ours; never mixed with it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from dynaquant_core.experiments.price import Run
from dynaquant_core.experiments.report.table import Row

__all__ = ["SOURCE", "published_rows"]

SOURCE: Final = (
    "As published, of other and far larger models: arXiv 2306.11800, ten restores, threshold 5%, weights "
    "only.  CNR+ and QD+ are that paper's versions of Check-N-Run and QD-Compressor."
)

#: Degradation in %, ratio, overhead in %.
Reported = tuple[float, float, float]

#: Our method -> its name there, and what the paper reports of each of its models; None: the method failed.
PUBLISHED: Final[dict[str, tuple[str, dict[str, Reported | None]]]] = {
    "dynaquant": (
        "DynaQuant",
        {
            "ResNet-152": (0.50, 39.09, 0.35),
            "ViT-L32": (-0.46, 26.19, 0.51),
            "BERT Base": (0.80, 29.25, 0.58),
            "GPT-2 Medium": (0.61, 29.81, 0.32),
        },
    ),
    "qd": (
        "QD+",
        {
            "ResNet-152": (-0.09, 11.82, 0.11),
            "ViT-L32": (0.12, 16.31, 0.18),
            "BERT Base": None,
            "GPT-2 Medium": (1.10, 22.15, 0.10),
        },
    ),
    "cnr": (
        "CNR+",
        {
            "ResNet-152": (0.36, 5.71, 0.61),
            "ViT-L32": (-0.21, 7.82, 0.96),
            "BERT Base": (3.97, 6.78, 1.03),
            "GPT-2 Medium": (0.25, 6.35, 0.55),
        },
    ),
}


def published_rows(runs: Sequence[Run]) -> list[Row]:
    """Rows of the methods that were run here and that the paper reports; none where there is no such method.

    Example:
        >>> published_rows([{"method": "qd"}])[0]["weights ratio"]
        '11.8x'
    """
    names = dict.fromkeys(run["method"] for run in runs)
    return [
        _row(PUBLISHED[name][0], model, figures)
        for name in names
        if name in PUBLISHED
        for model, figures in PUBLISHED[name][1].items()
    ]


def _row(method: str, model: str, figures: Reported | None) -> Row:
    named = {"as published": method, "model": model}
    if figures is None:
        return {**named, "weights ratio": "failed", "final": "-", "overhead": "-"}
    worse, ratio, overhead = figures
    return {
        **named,
        "weights ratio": f"{ratio:.1f}x",
        "final": f"{worse:+.2f}%",
        "overhead": f"{overhead:.2f}%",
    }
