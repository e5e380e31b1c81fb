"""NNCodec 2 (ISO 15938-17): DeepCABAC over uniform steps with dependent quantisation; weights only.

The first checkpoint is coded as it is, every later one as the difference between the weights and what the
reader holds, the package's ``--uc=2``.  Nothing is ever coded in full again.
"""

from __future__ import annotations

import time
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch
from coder import Meets, Note, Tensors, coarsest
from numpy.typing import NDArray
from safetensors.torch import load_file, save_file
from torch import Tensor

from dynaquant_core.errors import ExperimentError

__all__ = ["NNCodec"]

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


class NNCodec:
    """The largest step (``qp``) whose decoded weights meet, found by `coarsest` with real files."""

    def __init__(self) -> None:
        self._held: Arrays | None = None
        self._qp = FIRST

    def write(self, tensors: Tensors, folder: Path, meets: Meets) -> Note:
        """Writes ``update.nnc``, and beside it what is not float32."""
        floats, rest = _split(tensors)
        difference = floats if self._held is None else _minus(floats, self._held)

        def tried(qp: int) -> tuple[bytearray, Arrays, float]:
            started = time.perf_counter()
            stream = _encode(difference, qp)
            seconds = time.perf_counter() - started
            return stream, _plus(self._held, _decode(stream)), seconds

        def judged(candidate: tuple[bytearray, Arrays, float]) -> bool:
            return meets(_tensors(candidate[1]) | rest)

        found = coarsest(tried, judged, FINEST, COARSEST, self._qp)
        self._qp, (stream, self._held, seconds), count = found
        (folder / "update.nnc").write_bytes(stream)
        if rest:
            save_file(rest, folder / "rest.safetensors")
        return Note(seconds, f"qp {self._qp}", count)

    def read(self, folder: Path) -> dict[str, Tensor]:
        """What was held, and the update on top of it."""
        stream = bytearray((folder / "update.nnc").read_bytes())
        self._held = _plus(self._held, _decode(stream))
        rest = folder / "rest.safetensors"
        return _tensors(self._held) | (load_file(rest) if rest.exists() else {})


def _encode(values: Arrays, qp: int) -> bytearray:
    fresh = {name: array.copy() for name, array in values.items()}
    try:
        stream = _nnc().compress(
            fresh, bitstream_path=None, qp=qp, nonweight_qp=qp + VECTORS, return_bitstream=True, **OPTIONS
        )
    except SystemExit as error:  # its way to refuse
        raise ExperimentError(f"nncodec: refused the tensors ({error!s:.200}).") from None
    return bytearray(stream)


def _decode(stream: bytearray) -> Arrays:
    decoded: Arrays = _nnc().decompress(bytearray(stream))
    return decoded


def _split(tensors: Tensors) -> tuple[Arrays, dict[str, Tensor]]:
    """What nncodec takes, and the rest: counters, such as those of batch norms."""
    floats, rest = {}, {}
    for name, tensor in tensors.items():
        if tensor.dtype == torch.float32:
            floats[name] = tensor.numpy()
        elif tensor.is_floating_point():
            raise ExperimentError(f"nncodec: {name} is {tensor.dtype}; it takes float32 only.")
        else:
            rest[name] = tensor
    return floats, rest


def _minus(values: Arrays, held: Arrays) -> Arrays:
    return {name: array - held[name] for name, array in values.items()}


def _plus(held: Arrays | None, update: Arrays) -> Arrays:
    if held is None:
        return dict(update)
    return {name: array + update[name] for name, array in held.items()}


def _tensors(arrays: Arrays) -> dict[str, Tensor]:
    return {name: torch.from_numpy(array.copy()) for name, array in arrays.items()}


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
