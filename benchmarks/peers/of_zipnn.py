"""ZipNN: bytes of equal place together, Huffman or zstd over each group; lossless.

A checkpoint is serialised by safetensors and compressed as one buffer, as the package's own script does with
files.
"""

from __future__ import annotations

import time
from importlib import import_module
from pathlib import Path
from typing import Any

from coder import Meets, Note, Tensors
from safetensors.torch import load, save
from torch import Tensor

__all__ = ["ZipNN"]


class ZipNN:
    """Each checkpoint on its own, or as the XOR with the bytes of the one before.

    Args:
        delta: the latter, by the package's ``delta_compressed_type="byte"``; its docstring calls it not yet
            implemented, but it is, and reads back bit for bit.
    """

    def __init__(self, *, delta: bool = False) -> None:
        self._delta = delta
        self._held: bytes | None = None

    def write(self, tensors: Tensors, folder: Path, meets: Meets) -> Note:  # noqa: ARG002 - nothing to choose
        """Writes ``state.znn``."""
        started = time.perf_counter()
        raw = save({name: tensor.contiguous() for name, tensor in tensors.items()})
        # Copies: it may rearrange what it is given in place.
        packed = self._zipper().compress(bytearray(raw), **self._against())
        (folder / "state.znn").write_bytes(packed)
        self._held = raw
        return Note.since(started)

    def read(self, folder: Path) -> dict[str, Tensor]:
        """All of it, every bit."""
        packed = bytearray((folder / "state.znn").read_bytes())
        self._held = bytes(self._zipper().decompress(packed, **self._against()))
        return load(self._held)

    def _zipper(self) -> Any:
        known = {"delta_compressed_type": "byte"} if self._delta and self._held is not None else {}
        return import_module("zipnn").ZipNN(input_format="byte", bytearray_dtype="float32", **known)

    def _against(self) -> dict[str, bytearray]:
        return {"delta_second_data": bytearray(self._held)} if self._delta and self._held is not None else {}
