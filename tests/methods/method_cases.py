"""Every method that is built in, each on one line: a name for the row, its options, points to try."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from dynaquant_core.methods import Method, resolve_method


@dataclass(frozen=True)
class Case:
    """One row.

    Args:
        method: its name in the registry.
        configs: points as their ``as_dict`` data; the last keeps every bit.
        options: of the method.
    """

    method: str
    configs: Sequence[Mapping[str, Any]]
    options: Mapping[str, Any] = field(default_factory=dict)

    def build(self) -> Method:
        """The method, made anew."""
        return resolve_method({"name": self.method, **self.options})

    def points(self) -> list[Any]:
        """The points, as the method's own type."""
        method = self.build()
        return [method.config(config) for config in self.configs]


METHODS = {
    "lattice": Case("lattice", [{"scale": 0.5}, {"scale": 0.02}, {"scale": "bf16"}, {"scale": "exact"}]),
    "dynaquant": Case("dynaquant", [{"bins": 16}, {"bins": 6, "prune": 0.3}, {"bins": "exact"}]),
    "dynaquant paper": Case("dynaquant", [{"bins": 16}, {"bins": "exact"}], {"profile": "paper"}),
    "exact": Case("exact", [{}]),
    "qd": Case("qd", [{}, {"maximum": 32, "minimum": 8}, {"maximum": 8, "minimum": 8}, {"exact": True}]),
    "cnr": Case("cnr", [{"bins": 16}, {"bins": 8, "step_bins": 10, "shrink": 0.3}, {"exact": True}]),
    "cnr huffman": Case("cnr", [{"bins": 100}, {"exact": True}], {"coder": "huffman"}),
    "gobo": Case("gobo", [{"bins": 8}, {"bins": 256, "embedding_bins": 16}, {"exact": True}]),
    "gobo huffman": Case("gobo", [{"bins": 16}, {"exact": True}], {"coder": "huffman", "time_limit": 60.0}),
    "excp": Case("excp", [{"bits": 4}, {"bits": 2, "alpha": 4.0}, {"bits": "exact"}]),
    "lc": Case("lc", [{"bits": 8}, {"bits": 3}, {"bits": 2}, {"bits": "exact"}]),
    "lc without Huffman": Case("lc", [{"bits": 4}, {"bits": "exact"}], {"stages": "EP"}),
    "lc exponents only": Case("lc", [{}, {"bits": "exact"}], {"stages": "E"}),
    "scar": Case("scar", [{"share": 0.2}, {"share": 0.05}, {"share": 1.0}]),
    "scar in turn": Case("scar", [{"share": 0.5}, {"share": 1.0}], {"order": "turn"}),
    "topn": Case("topn", [{"share": 0.2}, {"share": 0.05}, {"share": 1.0}]),
    "zstd": Case("zstd", [{}]),
    "zstd 19": Case("zstd", [{}], {"level": 19}),
    "none": Case("none", [{}]),
}
