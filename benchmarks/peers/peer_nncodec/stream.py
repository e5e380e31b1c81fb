"""Arrays to NNCodec's bytes and back: the package's own coder, and how it is asked."""

from __future__ import annotations

from importlib import import_module
from types import ModuleType
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from dynaquant_core.errors import ExperimentError

__all__ = ["COARSEST", "FINEST", "FIRST", "Arrays", "decode", "encode", "minus", "plus"]

Arrays = dict[str, NDArray[np.float32]]

#: Steps grow by 2^(1/4) with each; the finest is about 4e-6, the coarsest 1.
FINEST, COARSEST = -72, 0

#: Where the search of the first checkpoint begins; later ones begin where the one before ended.
FIRST = -24

#: Vectors get an eighth of the matrices' step.  The package's own rule, -75 whatever the rest, is for files
#: in full; it costs 3% more here.
VECTORS = -12

#: As `nncodec.nn.encode` has them.
OPTIONS: dict[str, Any] = {"use_dq": True, "param_opt": True, "row_skipping": True, "verbose": False}


def encode(values: Arrays, qp: int) -> bytearray:
    """A stream with a step of 2^(qp / 4).

    Args:
        values: by name.
        qp: `FINEST` to `COARSEST`.

    Raises:
        ExperimentError: the package refuses the arrays.
    """
    fresh = {name: array.copy() for name, array in values.items()}
    try:
        stream = _nnc().compress(
            fresh, bitstream_path=None, qp=qp, nonweight_qp=qp + VECTORS, return_bitstream=True, **OPTIONS
        )
    except SystemExit as error:  # its way to refuse
        raise ExperimentError(f"nncodec: refused the tensors ({error!s:.200}).") from None
    return bytearray(stream)


def decode(stream: bytearray) -> Arrays:
    """What a stream of `encode` holds."""
    decoded: Arrays = _nnc().decompress(bytearray(stream))
    return decoded


def minus(values: Arrays, held: Arrays | None) -> Arrays:
    """The difference to what a reader holds; None: nothing.

    Example:
        >>> minus({"w": np.float32([3.0])}, {"w": np.float32([1.0])})["w"].tolist()
        [2.0]
    """
    if held is None:
        return dict(values)
    return {name: array - held[name] for name, array in values.items()}


def plus(held: Arrays | None, update: Arrays) -> Arrays:
    """What a reader holds after an update."""
    if held is None:
        return dict(update)
    return {name: array + update[name] for name, array in held.items()}


def _nnc() -> ModuleType:
    """The package's coder, imported when it is first needed."""
    try:
        return import_module("nncodec.nnc")
    except RuntimeError as error:
        if "torchvision::" not in str(error):
            raise
    _name_operators()
    return import_module("nncodec.nnc")


def _name_operators() -> None:
    """Lets torchvision be imported without its compiled part.

    The wheel of the package index is linked against CUDA; beside a torch without it ``import torchvision``
    ends at two operators.  nncodec imports torchvision for data sets that nobody asks for here.
    """
    for operator in ("nms", "qnms"):
        torch.library.define(
            f"torchvision::{operator}", "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
        )
