"""The method ``"lc"``: what it decides, and how a change becomes streams and comes back."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, get_args

from torch import Tensor

from dynaquant_core.coding import encode_smallest
from dynaquant_core.config import FrozenSettings, require, require_choice
from dynaquant_core.methods.base import Reference, Space, Stream, StreamSource
from dynaquant_core.methods.lc.links import Coded, Tracked, coded, read_tracked, whole_streams
from dynaquant_core.methods.lc.super_step import super_step
from dynaquant_core.methods.pooling import write_layout
from dynaquant_core.methods.tensorwise import CODED, WORDS, TensorMethod, TensorsHeld
from dynaquant_core.methods.words import CODECS, Plain, plain_of
from dynaquant_core.quantize.change import moved
from dynaquant_core.quantize.exponent import MOST_STEPS, quantised
from dynaquant_core.state import TensorSpec

__all__ = ["Lc", "LcConfig"]

Stages = Literal["EPH", "EP", "EH", "E"]

#: Bits of the promotion, careful to bold.
BITS: Final = (8, 7, 6, 5, 4, 3, 2)


@dataclass(frozen=True, slots=True, kw_only=True)
class LcConfig(FrozenSettings):
    """One point of the method ``lc``.

    Args:
        bits: x of the priority promotion, 2 to 8 (2^x - 1 buckets keep their value); ``"exact"`` keeps every
            tensor bit for bit.

    Raises:
        ConfigError: the value is of the wrong type or out of range.

    Example:
        >>> LcConfig(bits=3).as_dict()
        {'bits': 3}
    """

    bits: int | Literal["exact"] = 4

    def __post_init__(self) -> None:
        whole = isinstance(self.bits, int) and not isinstance(self.bits, bool)
        good = self.bits == "exact" or (whole and min(BITS) <= int(self.bits) <= max(BITS))
        require(good, f"LcConfig: bits must be a whole number from 2 to 8 or 'exact', got {self.bits!r}.")

    @property
    def exact(self) -> bool:
        """Whether every tensor is kept as it is."""
        return self.bits == "exact"


class Lc(TensorMethod[LcConfig, Coded, Tracked]):
    """The method ``"lc"``: LC-Checkpoint (Chen et al., arXiv 2009.13003).

    Card:
        What it does: codes the change since what a reader holds, so that what is lost once comes again with
        the next change; quantises it by sign and exponent (E), keeps the 2^x - 1 buckets of the largest
        exponents (P), and codes the buckets' numbers by Huffman (H).
        What it costs: a key whole; then below x bits a weight, and 4 bytes a bucket and tensor.
        What is lost: the small movements that were not promoted, until they have grown; of the others at
        most half.
        Departures: tensors are coded one by one, the approximation has the tensor's own dtype, a fuller
        bucket goes first where two share an exponent, and each tensor has its own cache of tables.

    Args:
        stages: which stages run: ``"EPH"``, ``"EP"``, ``"EH"`` or ``"E"``.
        super_step: deltas that a store makes one of in the background, where only the last of them is wanted:
            2 to 255; 0: none.  Readers need not know it: a chain goes on when it changes.

    Raises:
        ConfigError: there is no such combination of stages, or ``super_step`` is no such number.

    Example:
        >>> import torch
        >>> from dynaquant_core.methods.base import Hints
        >>> method, weight = Lc(), torch.ones(16, 16)
        >>> _, held = method.draft({"w": weight}, None, LcConfig(), Hints()).encode()
        >>> draft = method.draft({"w": weight + 0.25}, held, LcConfig(bits=2), Hints())
        >>> draft.size < 16, float(dict(draft.decoded)["w"].mean())
        (True, 1.25)
    """

    name = "lc"
    point = LcConfig

    def __init__(self, *, stages: Stages = "EPH", super_step: int = 0) -> None:
        require_choice("method lc", "stages", stages, get_args(Stages))
        good = type(super_step) is int and (super_step == 0 or 2 <= super_step <= MOST_STEPS)
        require(
            good,
            f"method lc: super_step must be 0 or a whole number from 2 to {MOST_STEPS}, got {super_step!r}.",
        )
        self.stages, self.super_step = stages, super_step

    def options(self) -> dict[str, Any]:
        """The stages; a super step is read like any other link."""
        return {"stages": self.stages}

    def space(self, *, gradients: bool) -> Space:  # noqa: ARG002
        """Bits from 8 to 2; one point where nothing is promoted."""
        bits = BITS if "P" in self.stages else BITS[:1]
        return Space(
            build=LcConfig,
            axes={"bits": bits},
            variants={},
            refine={},
            beyond=(LcConfig(bits="exact"),),
            default=LcConfig(),
        )

    def code(
        self,
        name: str,  # noqa: ARG002
        tensor: Tensor,
        base: Tracked | None,
        config: LcConfig,
        plan: Any,  # noqa: ARG002
    ) -> Coded | Plain:
        """The change since the base; the tensor whole where there is none."""
        if base is None:
            return plain_of(tensor, bf16=False)
        change = moved(tensor, base.values)
        promoted = config.bits if isinstance(config.bits, int) and "P" in self.stages else None
        return coded(quantised(change, promoted), base, huffman="H" in self.stages)

    def hold(self, coded: Coded) -> Tracked:
        """The approximation after the change."""
        return coded.hold()

    def adopt(self, tensor: Tensor) -> Tracked:
        """The approximation begins as the tensor itself."""
        return Tracked(tensor.reshape(-1), {})

    def value(self, held: Tracked, spec: TensorSpec) -> Tensor:
        """The approximation."""
        return held.values.clone().reshape(spec.shape)

    def write(self, name: str, coded: Coded) -> Iterator[Stream]:
        """Buckets, new tables, codes."""
        return coded.streams(name)

    def read(self, source: StreamSource, name: str, spec: TensorSpec, base: Tracked | None) -> Tracked:
        """A change, or the whole approximation as `rekey` wrote it."""
        return read_tracked(source, name, spec, base)

    def merge(self, links: Sequence[StreamSource], base: Reference) -> list[Stream]:
        """One link in place of several consecutive ones: the paper's super step.

        A reader of it holds what a reader of all of them holds, bit for bit, tables included; so what builds
        on the last of them builds on it.

        Args:
            links: streams of at least one checkpoint, oldest first, each written against the one before.
            base: what a reader holds before the first.

        Raises:
            ConfigError: there is no link.
            CorruptFileError: the streams are not what this method writes.
            MissingBaseError: the first stands on something that ``base`` does not hold.
        """
        held = base if isinstance(base, TensorsHeld) else TensorsHeld(self, {}, {})
        return super_step(links, held, huffman="H" in self.stages)

    def rekey(self, reference: Reference) -> Iterator[Stream]:
        """Streams that decode, without a base, to the same approximations and tables."""
        if not isinstance(reference, TensorsHeld):
            return
        tensors = reference.tensors
        yield write_layout([WORDS if isinstance(own, Plain) else CODED for own in tensors.values()])
        for name, own in tensors.items():
            if isinstance(own, Plain):
                yield Stream(name, "values", *encode_smallest(own.bits, None, CODECS))
            else:
                yield from whole_streams(name, own, reference.specs[name])
