"""CNR+: uniform layers whose range is searched, each checkpoint on its own."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, ClassVar, Final, Literal

from torch import Tensor

from dynaquant_core.config import FrozenSettings, require, require_choice, require_number
from dynaquant_core.methods.base import Space, Stream, StreamSource
from dynaquant_core.methods.level_codes import (
    Layer,
    empty_codes,
    read_codes,
    read_levels,
    require_coder,
    write_codes,
    write_levels,
)
from dynaquant_core.methods.tensorwise import TensorMethod
from dynaquant_core.quantize.even import MOST_BINS, EvenLevels, host_values
from dynaquant_core.quantize.range_search import greedy_range
from dynaquant_core.state import TensorSpec

__all__ = ["Cnr", "CnrConfig"]

BINS: Final = (256, 128, 64, 32, 16, 8)
STEP_BINS: Final = (100, 50, 25, 10)
SHRINKS: Final = (0.5, 0.4, 0.3, 0.2, 0.1)


@dataclass(frozen=True, slots=True, kw_only=True)
class CnrConfig(FrozenSettings):
    """One point of the method ``cnr``.

    Args:
        bins: levels of a layer, 2 to 256.
        step_bins: the search moves an end by the full range divided by this, 2 to 1000.
        shrink: share of the full range that it may take off, in [0, 1); "range" where it was published.
        exact: every tensor is kept bit for bit instead.

    Raises:
        ConfigError: a value is of the wrong type or out of range.

    Example:
        >>> CnrConfig(bins=16).step_bins
        100
    """

    bins: int = 256
    step_bins: int = 100
    shrink: float = 0.5
    exact: bool = False

    def __post_init__(self) -> None:
        for name, least, most in (("bins", 2, MOST_BINS), ("step_bins", 2, 1000)):
            require_number("CnrConfig", name, getattr(self, name), least, most)
            require(isinstance(getattr(self, name), int), f"CnrConfig: {name} must be a whole number.")
        require_number("CnrConfig", "shrink", self.shrink, 0.0, 1.0, open_high=True)
        require_choice("CnrConfig", "exact", self.exact, (False, True))


class Cnr(TensorMethod[CnrConfig, Layer, Layer]):
    """The method ``cnr``: Check-N-Run's quantiser (NSDI'22) under the same search as all others ("CNR+").

    Card.  A layer's weights go to evenly spaced levels between two ends that a greedy search moves inwards
    (arXiv 1911.02079).  Every checkpoint stands alone.  A layer that is what the last one gave, as frozen
    layers are after a restore, keeps levels and codes.  Lost: half a step a weight inside the ends, and
    weights beyond them come back as the ends.  Cost: four passes over the weights and 2 ``step_bins`` x
    ``shrink`` errors from sums, a few milliseconds a layer; 1 byte a weight held.

    Packed codes take the same bytes however the range was found, so the best point of the published cube
    always has the most thorough search; only ``bins`` is then an axis, which finds that point in fewer tries.
    Under Huffman a wider range is cheaper, and all three are.

    Source: arXiv 2306.11800 (the baseline CNR+) and the papers it names.  Departures: ranges are a layer's,
    as there, and not an embedding row's; the error of a range comes from buckets where a layer has more than
    65536 weights (`quantize.range_search` says what that may change); frozen layers are ours to keep: there
    every save searches anew, and each restore would add noise that no training takes out.

    Args:
        coder: ``"packed"`` writes codes of fixed width, as published; ``"huffman"`` is ours.

    Raises:
        ConfigError: the coder is another.

    Example:
        >>> import torch
        >>> from dynaquant_core.methods.base import Hints
        >>> weights = torch.linspace(-1, 1, 512).reshape(2, 256)
        >>> draft = Cnr().draft({"w": weights}, None, CnrConfig(bins=8), Hints())
        >>> [(stream.kind, len(stream.payload)) for stream in draft.encode()[0]]
        [('layout', 1), ('levels', 12), ('packed', 192)]
    """

    name = "cnr"
    point = CnrConfig
    builds_on_base: ClassVar[bool] = False
    keeps_still: ClassVar[bool] = True

    def __init__(self, *, coder: Literal["packed", "huffman"] = "packed") -> None:
        require_coder("method cnr", coder)
        self.coder = coder

    def options(self) -> dict[str, Any]:
        """The coder."""
        return {"coder": self.coder}

    def space(self, *, gradients: bool) -> Space:  # noqa: ARG002
        """As published: bins, and how finely and how far the range is searched, where that changes a size."""
        searched = {"step_bins": STEP_BINS, "shrink": SHRINKS} if self.coder == "huffman" else {}
        return Space(
            build=CnrConfig,
            axes={"bins": BINS, **searched},
            variants={},
            refine={},
            beyond=(CnrConfig(exact=True),),
            default=CnrConfig(),
            # Twice the step, four times the energy; a normal layer's whole range costs 1.5 doublings.
            rises={"bins": 2.0, "step_bins": 0.05, "shrink": 0.25},
        )

    def code(
        self,
        name: str,  # noqa: ARG002
        tensor: Tensor,
        base: Layer | None,  # noqa: ARG002
        config: CnrConfig,
        plan: Any,  # noqa: ARG002
    ) -> Layer:
        """Searches the range and quantises."""
        values = host_values(tensor)
        low, high = greedy_range(values, config.bins, config.step_bins, config.shrink)
        levels = EvenLevels(low, high, config.bins)
        return Layer(levels, levels.codes(values))

    def hold(self, coded: Layer) -> Layer:
        """The same."""
        return coded

    def value(self, held: Layer, spec: TensorSpec) -> Tensor:
        """The levels that the codes stand for."""
        return held.tensor(spec)

    def write(self, name: str, coded: Layer) -> Iterable[Stream]:
        """``levels``, and the codes as ``packed`` or ``codes``."""
        yield write_levels(name, coded.levels)
        yield write_codes(name, coded.codes, coded.levels.bins, self.coder)

    def read(self, source: StreamSource, name: str, spec: TensorSpec, base: Layer | None) -> Layer:  # noqa: ARG002
        """See `TensorMethod.read`."""
        levels, codes = read_levels(source, name), empty_codes(spec)
        read_codes(source, name, codes, levels.bins)
        return Layer(levels, codes)
