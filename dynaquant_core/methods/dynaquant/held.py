"""What a reader holds after a checkpoint: codes and codebooks, about one byte a weight."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import accumulate
from typing import Literal

import numpy as np
import torch
import xxhash
from numpy.typing import NDArray
from torch import Tensor

from dynaquant_core.lazy import lazy
from dynaquant_core.methods.base import Reference
from dynaquant_core.methods.words import Plain
from dynaquant_core.quantize.codebook import table
from dynaquant_core.quantize.seam import gather
from dynaquant_core.state.pages import empty_tensor
from dynaquant_core.state.raw import empty_words
from dynaquant_core.state.spec import TensorSpec
from dynaquant_core.threads import map_threads, thread_count

__all__ = ["CodeRoom", "Coded", "Held", "Scope"]

Scope = Literal["tensor", "global"]


class CodeRoom:
    """Room for the codes of many tensors, end to end: one large block has large pages, and is cheap to get.

    Args:
        specs: shapes of the tensors; one that is asked for later than the others costs nothing before.
    """

    def __init__(self, specs: Mapping[str, TensorSpec]) -> None:
        sizes = [spec.numel for spec in specs.values()]
        self._ends = dict(zip(specs, accumulate(sizes), strict=True))
        self._specs = specs
        self._whole = empty_words(TensorSpec((sum(sizes),), "uint8"))

    def __getitem__(self, name: str) -> NDArray[np.uint8]:
        """uint8[n], uninitialised."""
        end = self._ends[name]
        return self._whole[end - self._specs[name].numel : end]


@dataclass(frozen=True, slots=True)
class Coded:
    """A tensor as levels of a codebook.

    Args:
        spec: shape and dtype of the tensor.
        codes: uint8[n]; 0 pruned, 1 protected, 2.. the centres by ascending value.
        centres: float32[k], ascending.
        protected: uint16[m], bfloat16 bit patterns of the protected weights in order.
    """

    spec: TensorSpec
    codes: NDArray[np.uint8]
    centres: NDArray[np.float32]
    protected: NDArray[np.uint16]

    def tensor(self, device: torch.device | str = "cpu") -> Tensor:
        """Decodes the tensor."""
        out = empty_tensor(self.spec, device)
        gather(self.codes, table(self.centres), self.protected, out)
        return out


class Held:
    """Codes of a whole checkpoint; a `Reference` (methods.base).

    Args:
        tensors: what is held of each tensor, by name.
        scope: the codebook scope chosen at the chain's key checkpoint.
        shared: the centres that tensors share, or None.
        epoch: of the draws of the run that wrote it (see `dithered.epoch_of`), or None.
        restored: it was read from a file, so a run may have begun on these very values.
    """

    def __init__(
        self,
        tensors: Mapping[str, Coded | Plain],
        scope: Scope,
        shared: NDArray[np.float32] | None = None,
        *,
        epoch: int | None = None,
        restored: bool = False,
    ) -> None:
        self.tensors = dict(tensors)
        self.scope = scope
        self.shared = shared
        self.epoch = epoch
        self.restored = restored

    def rejoin(self, newest: Reference) -> None:
        """Goes on as what the run that wrote it held; see `methods.base.Rejoins`."""
        if isinstance(newest, Held):
            self.restored, self.epoch = newest.restored, newest.epoch

    @lazy
    def digest(self) -> int:
        """32 bits that stand for all that is held: the same for every reader of a checkpoint."""
        digest = xxhash.xxh3_64()
        for held in self.tensors.values():
            parts = (held.codes, held.centres, held.protected) if isinstance(held, Coded) else (held.bits,)
            for part in parts:
                digest.update(part.tobytes())
        return digest.intdigest() & 0xFFFFFFFF

    def items(self) -> Iterator[tuple[str, Tensor]]:
        """Yields (name, tensor), on the CPU; a few are decoded at a time, one a thread."""
        names, count = list(self.tensors), thread_count()
        for start in range(0, len(names), count):
            batch = names[start : start + count]
            yield from zip(batch, map_threads(self._tensor, batch), strict=True)

    def state(self) -> dict[str, Tensor]:
        """All tensors, decoded."""
        return dict(zip(self.tensors, map_threads(self._tensor, self.tensors), strict=True))

    def _tensor(self, name: str) -> Tensor:
        return self.tensors[name].tensor()

    def coded(self, name: str) -> Coded | None:
        """The tensor's codes, or None where it is not held as codes."""
        held = self.tensors.get(name)
        return held if isinstance(held, Coded) else None
