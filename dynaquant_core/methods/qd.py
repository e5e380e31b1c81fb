"""QD+: uniform layers of a width that entropy chooses, differences to the base's codes, Huffman."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, Final

from torch import Tensor

from dynaquant_core.coding import encode_smallest
from dynaquant_core.coding.counts import symbol_counts
from dynaquant_core.config import FrozenSettings, require, require_choice
from dynaquant_core.delta import cyclic_delta, undo_cyclic_delta
from dynaquant_core.errors import CorruptFileError
from dynaquant_core.methods.base import Reference, Space, Stream, StreamSource
from dynaquant_core.methods.level_codes import (
    HUFFMAN,
    Layer,
    below,
    empty_codes,
    read_codes,
    read_levels,
    write_codes,
    write_levels,
)
from dynaquant_core.methods.pooling import write_layout
from dynaquant_core.methods.streams import decode_stream
from dynaquant_core.methods.tensorwise import CODED, WORDS, TensorMethod, TensorsHeld, expect_base
from dynaquant_core.methods.words import CODECS, Plain
from dynaquant_core.quantize.even import EvenLevels, bins_by_entropy, host_values
from dynaquant_core.state import TensorSpec

__all__ = ["Qd", "QdConfig"]

#: Numbers of bins that the search tries, careful first (PAPER: "from {8, ..., 256}").
BINS: Final = (256, 128, 64, 32, 16, 8)


@dataclass(frozen=True, slots=True, kw_only=True)
class QdConfig(FrozenSettings):
    """One point of the method ``qd``.

    Args:
        maximum: most bins of a layer: a power of two from 2 to 256.
        minimum: fewest bins of a layer, likewise; not above ``maximum``.
        exact: every tensor is kept bit for bit instead.

    Raises:
        ConfigError: a value is of the wrong type or out of range.

    Example:
        >>> QdConfig(maximum=64, minimum=8).maximum
        64
    """

    maximum: int = 256
    minimum: int = 256
    exact: bool = False

    def __post_init__(self) -> None:
        for name in ("maximum", "minimum"):
            require_choice("QdConfig", name, getattr(self, name), tuple(1 << width for width in range(1, 9)))
        order = f"minimum {self.minimum} is above maximum {self.maximum}"
        require(self.minimum <= self.maximum, f"QdConfig: {order}; give it at most that.")
        require_choice("QdConfig", "exact", self.exact, (False, True))


@dataclass(frozen=True, slots=True, eq=False)
class Step:
    """A tensor that is still to be written: as it will be held, and the base's it is written against."""

    layer: Layer
    base: Layer | None


class Qd(TensorMethod[QdConfig, Step, Layer]):
    """The method ``qd``: QD-Compressor (TPDS'23) under the same search as all others ("QD+").

    Card.  A layer's weights go to evenly spaced levels over its own range, as many as the entropy H of its
    codes at ``maximum`` bins asks for: 2^ceil(H), within ``minimum`` and ``maximum``.  A delta writes the
    cyclic difference to the base's codes, modulo the larger of the two numbers of levels, so that a width may
    change; then Huffman, one table a tensor.  A layer that is what the last checkpoint gave, as frozen layers
    are after a restore, keeps levels and codes.  Lost: up to half a step, range / (bins - 1) / 2, a weight;
    one far weight widens the steps of its whole layer.  Cost: four passes over the weights, 1 byte a weight
    held.

    Source: arXiv 2306.11800 (the baseline QD+) and the paper it names.  Departures: that text gives no rule
    for the width, the one above is our reading; a tensor whose differences are all the same costs one byte
    and not a bit a weight; frozen layers are ours to keep: codes that a restore gave are fewer and have less
    entropy than the weights had, so each save would give them fewer bins than the one before.

    Example:
        >>> import torch
        >>> from dynaquant_core.methods.base import Hints
        >>> weights = torch.linspace(-1, 1, 512).reshape(2, 256)
        >>> draft = Qd().draft({"w": weights}, None, QdConfig(maximum=16, minimum=8), Hints())
        >>> (next(iter(draft.decoded))[1] - weights).abs().max() < 1 / 15 + 1e-6
        tensor(True)
    """

    name = "qd"
    point = QdConfig
    keeps_still: ClassVar[bool] = True

    def space(self, *, gradients: bool) -> Space:  # noqa: ARG002
        """Both numbers of bins, as published; a minimum above the maximum counts as the maximum."""
        return Space(
            build=_point,
            axes={"maximum": BINS, "minimum": BINS},
            variants={},
            refine={},
            beyond=(QdConfig(exact=True),),
            default=QdConfig(),
        )

    def code(
        self,
        name: str,  # noqa: ARG002
        tensor: Tensor,
        base: Layer | None,
        config: QdConfig,
        plan: Any,  # noqa: ARG002
    ) -> Step:
        """Quantises a layer at the most bins, and again where its entropy asks for fewer."""
        values = host_values(tensor)
        levels = EvenLevels.over(values, config.maximum)
        codes = levels.codes(values)
        bins = bins_by_entropy(symbol_counts(codes), config.minimum, config.maximum)
        if bins < config.maximum:
            levels = EvenLevels(levels.low, levels.high, bins)
            codes = levels.codes(values)
        return Step(Layer(levels, codes), base)

    def kept(self, held: Layer, base: Layer | None) -> Step:
        """The same levels and codes, against the base."""
        return Step(held, base)

    def hold(self, coded: Step) -> Layer:
        """The layer without what it is written against."""
        return coded.layer

    def value(self, held: Layer, spec: TensorSpec) -> Tensor:
        """The levels that the codes stand for."""
        return held.tensor(spec)

    def write(self, name: str, coded: Step) -> Iterable[Stream]:
        """``levels``, and ``codes`` of a tensor that stands alone or ``delta`` of one that does not."""
        layer, base = coded.layer, coded.base
        if base is None:
            yield write_levels(name, layer.levels)
            yield write_codes(name, layer.codes, layer.levels.bins, "huffman")
            return
        yield write_levels(name, layer.levels, base.levels)
        delta = cyclic_delta(base.codes, layer.codes, levels=_modulus(layer.levels, base.levels))
        yield Stream(name, "delta", *encode_smallest(delta, None, HUFFMAN))

    def read(self, source: StreamSource, name: str, spec: TensorSpec, base: Layer | None) -> Layer:
        """See `TensorMethod.read`."""
        out = empty_codes(spec)
        if not source.has(name, "delta"):
            levels = read_levels(source, name)
            read_codes(source, name, out, levels.bins)
            return Layer(levels, out)
        before = expect_base(base, name)
        levels = read_levels(source, name, before.levels)
        modulus = _modulus(levels, before.levels)
        decode_stream(source, name, "delta", out)
        below(out, modulus, name)
        codes = undo_cyclic_delta(before.codes, out, levels=modulus)
        below(codes, levels.bins, name)
        return Layer(levels, codes)

    def rekey(self, reference: Reference) -> Iterator[Stream]:
        """The streams of a key checkpoint that decodes to an equal reference.

        Raises:
            CorruptFileError: the reference is another method's.
        """
        if not isinstance(reference, TensorsHeld):
            raise CorruptFileError(f"Method qd cannot write what a {type(reference).__name__} holds.")
        tensors = reference.tensors
        yield write_layout([WORDS if isinstance(held, Plain) else CODED for held in tensors.values()])
        for name, held in tensors.items():
            if isinstance(held, Plain):
                yield Stream(name, "values", *encode_smallest(held.bits, None, CODECS))
            else:
                yield from self.write(name, Step(held, None))


def _point(*, maximum: int, minimum: int) -> QdConfig:
    return QdConfig(maximum=maximum, minimum=min(minimum, maximum))


def _modulus(levels: EvenLevels, base: EvenLevels) -> int:
    return max(levels.bins, base.bins)
