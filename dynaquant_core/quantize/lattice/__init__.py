"""The dithered lattice: weights as whole numbers of steps on a grid that a generator shifts (ours).

`offsets` are the shifts, the same for writer and reader and stored nowhere; `quantise` turns a tensor into
symbols and back; `steps` says how wide a step is in each tensor.  The error has no memory and no direction,
so that training heals it after a restore.
"""

from dynaquant_core.quantize.lattice.offsets import key_from, offset_key, offsets
from dynaquant_core.quantize.lattice.quantise import ESCAPE, LARGEST, MIDDLE, dequantise, quantise
from dynaquant_core.quantize.lattice.scattered import scattered
from dynaquant_core.quantize.lattice.steps import (
    TensorStat,
    is_step,
    is_unit,
    relative_steps,
    round_step,
    steps_of,
)
from dynaquant_core.quantize.lattice.sums import mean_square, spread, surroundings

__all__ = [
    "ESCAPE",
    "LARGEST",
    "MIDDLE",
    "TensorStat",
    "dequantise",
    "is_step",
    "is_unit",
    "key_from",
    "mean_square",
    "offset_key",
    "offsets",
    "quantise",
    "relative_steps",
    "round_step",
    "scattered",
    "spread",
    "steps_of",
    "surroundings",
]
