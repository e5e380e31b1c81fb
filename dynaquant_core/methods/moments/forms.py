"""The forms in which the small policies write one moment.  A form is a letter in the layout.

| letter | form |
|---|---|
| ``=`` | as in the base |
| ``E`` ``e`` | 8-bit blocks, with signs or without |
| ``S`` ``s`` | 4-bit blocks, with signs or without |
| ``t`` | ternary: a sign or 0 an element, a magnitude a row and a column |
| ``p`` | the product of a value a row and a value a column |
| ``q`` | that product, or 5/16 or 11/4 of it: a code an element |
| ``f`` | one value for all elements |
| ``z`` | zeros |
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from dynaquant_core.errors import CorruptFileError
from dynaquant_core.quantize import blocks, factors, levels, ternary
from dynaquant_core.state import TensorSpec, empty_tensor

__all__ = ["CODED", "LETTERS", "LEVELS", "SAME", "Coded", "Form", "decoded", "encoded", "form_of"]

SAME: Final = "="
#: Letters of a tensor that stands for itself.
LETTERS: Final = "EeSstpqfz"
#: Those with a code for every element -> how many codes there are.
LEVELS: Final = {"E": 256, "e": 256, "S": 16, "s": 16, "t": 3, "q": levels.LEVELS}
CODED: Final = frozenset(LEVELS)

Codes = NDArray[np.uint8]
Scales = NDArray[np.int16]


class Coded(NamedTuple):
    """One moment as it is written.

    Args:
        letter: its form.
        codes: uint8[n] in the forms of `CODED`, else empty.
        factors: uint8, 8-bit codes of the values of rows and columns, or the one value; else empty.
        scales: int16, of the codes or of the factors (`quantize.blocks`).
    """

    letter: str
    codes: Codes
    factors: Codes
    scales: Scales


class Form(NamedTuple):
    """Lengths of a tensor's arrays in a form."""

    codes: int
    factors: int
    scales: int


def form_of(letter: str, spec: TensorSpec) -> Form:
    """Lengths of the arrays of a tensor in a form.

    Example:
        >>> form_of("p", TensorSpec((300, 2), "float32"))
        Form(codes=0, factors=302, scales=3)
    """
    codes = spec.numel if letter in CODED else 0
    if letter in "tpq":
        return Form(codes, factors.factor_count(spec.shape), factors.factor_scale_count(spec.shape))
    if letter == "f":
        return Form(0, 1, 1)
    return Form(codes, 0, blocks.scale_count(codes))


def encoded(tensor: Tensor, letter: str, key: int | None = None) -> Coded:
    """Writes a moment in a form.

    Args:
        tensor: any.
        letter: of the form.
        key: of the draws of 8-bit codes of what has no signs (`quantize.blocks.encode`); None: none.  First
            moments forget within a few steps, and steps of 4 bits are so wide that noise would cost what
            drawing saves.

    Raises:
        UnsupportedStateError: a value is not finite, or negative in a form without signs.
    """
    none, no_scales = np.empty(0, np.uint8), np.empty(0, np.int16)
    match letter:
        case "E" | "e" | "S" | "s":
            grid = blocks.EIGHT if letter in "Ee" else blocks.FOUR
            codes, scales = blocks.encode(tensor, letter in "ES", grid, key=key if letter == "e" else None)
            return Coded(letter, codes, none, scales)
        case "t":
            return Coded(letter, *ternary.encode_ternary(tensor))
        case "q":
            return Coded(letter, *levels.encode_levels(tensor, key))
        case "p":
            return Coded(letter, none, *factors.encode_product(tensor, key))
        case "f":
            return Coded(letter, none, *factors.encode_mean(tensor, key))
    return Coded(letter, none, none, no_scales)


def decoded(coded: Coded, spec: TensorSpec) -> Tensor:
    """The tensor of what `encoded` returned, on the CPU.

    Raises:
        CorruptFileError: codes or scales are none that an encoder writes.
    """
    _refuse_bad(coded)
    out = empty_tensor(spec)
    match coded.letter:
        case "E" | "e" | "S" | "s":
            grid = blocks.EIGHT if coded.letter in "Ee" else blocks.FOUR
            blocks.decode(coded.codes, coded.scales, out, grid)
        case "t":
            ternary.decode_ternary(coded.codes, coded.factors, coded.scales, out)
        case "q":
            levels.decode_levels(coded.codes, coded.factors, coded.scales, out)
        case "p":
            factors.decode_product(coded.factors, coded.scales, out)
        case "f":
            one = out.new_empty(1)
            blocks.decode(coded.factors, coded.scales, one)
            out.copy_(one.expand(out.numel()).reshape(out.shape))
        case _:
            out.zero_()
    return out


def _refuse_bad(coded: Coded) -> None:
    """A negative second moment would end in a NaN far from here, so signs must be the form's."""
    signed = (coded.scales & blocks.SIGNED_BIT) != 0
    if (signed != (coded.letter in "ES")).any():
        raise CorruptFileError(f"moments: a scale of the form {coded.letter!r} is of another form.")
    if coded.codes.size and int(coded.codes.max()) >= LEVELS[coded.letter]:
        raise CorruptFileError(
            f"moments: a code is {int(coded.codes.max())}, the form {coded.letter!r} has "
            f"{LEVELS[coded.letter]}; load another checkpoint."
        )
