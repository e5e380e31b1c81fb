"""NNCodec 2 (ISO 15938-17): DeepCABAC over uniform steps with dependent quantisation; weights only.

The first checkpoint is coded as it is, every later one as the difference between the weights and what the
reader holds, the package's ``--uc=2``.  Nothing is ever coded in full again.
"""

from __future__ import annotations

import time
from pathlib import Path

import torch
from coder import Meets, Note, Tensors
from peer_nncodec.search import coarsest
from peer_nncodec.stream import COARSEST, FINEST, FIRST, Arrays, decode, encode, minus, plus
from safetensors.torch import load_file, save_file
from torch import Tensor

from dynaquant_core.errors import ExperimentError

__all__ = ["NNCodec"]


class NNCodec:
    """The largest step (``qp``) whose decoded weights meet, found by `coarsest` with real files."""

    def __init__(self) -> None:
        self._held: Arrays | None = None
        self._qp = FIRST

    def write(self, tensors: Tensors, folder: Path, meets: Meets) -> Note:
        """Writes ``update.nnc``, and beside it what is not float32."""
        floats, rest = _split(tensors)
        difference = minus(floats, self._held)

        def tried(qp: int) -> tuple[bytearray, Arrays, float]:
            started = time.perf_counter()
            stream = encode(difference, qp)
            seconds = time.perf_counter() - started
            return stream, plus(self._held, decode(stream)), seconds

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
        self._held = plus(self._held, decode(stream))
        rest = folder / "rest.safetensors"
        return _tensors(self._held) | (load_file(rest) if rest.exists() else {})


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


def _tensors(arrays: Arrays) -> dict[str, Tensor]:
    return {name: torch.from_numpy(array.copy()) for name, array in arrays.items()}
