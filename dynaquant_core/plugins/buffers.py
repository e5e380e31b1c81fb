"""Rank 0's buffers on loan: under data parallelism every rank has statistics of its own.

Running means of batch normalisation follow the batches that a rank has seen, and DistributedDataParallel
only evens them out at the next training step.  A shared search has to see rank 0's on all ranks.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping, Sequence

import torch
import xxhash
from torch import Tensor, nn

from dynaquant_core.borrowed import borrowed
from dynaquant_core.state import bytes_of, read_only

__all__ = ["MOST_BYTES", "Buffers"]

#: More than this is not sent; the search then finds the ranks' values different, and is not shared.
MOST_BYTES = 1 << 24


class Buffers:
    """The buffers of a rank's models, by a name that is the same on every rank.

    Args:
        models: in the same order on every rank.

    Example:
        >>> mine, theirs = nn.BatchNorm1d(1), nn.BatchNorm1d(1)
        >>> _ = theirs.running_mean.fill_(3.0)
        >>> leader, follower = Buffers([theirs]), Buffers([mine])
        >>> names = follower.differing(leader.digests()); names
        ['0.running_mean']
        >>> follower.borrow(leader.values(names)); float(mine.running_mean)
        3.0
        >>> follower.give_back(); float(mine.running_mean)
        0.0
    """

    def __init__(self, models: Iterable[nn.Module]) -> None:
        self._tensors = {
            f"{number}.{name}": buffer
            for number, model in enumerate(models)
            for name, buffer in model.named_buffers()
            if buffer.layout == torch.strided and not buffer.is_meta
        }
        self._fixed = read_only(self._tensors)
        self._own: dict[str, Tensor] = {}

    def digests(self) -> dict[str, str]:
        """Name -> digest of type, shape and bits."""
        return {name: _digest(tensor) for name, tensor in self._tensors.items()}

    def differing(self, digests: Mapping[str, str]) -> list[str]:
        """Names of those that are not as the other rank's ``digests`` say."""
        return [name for name, digest in self.digests().items() if digests.get(name) != digest]

    def values(self, names: Iterable[str]) -> dict[str, str]:
        """What `borrow` takes; nothing where it would be too much to send."""
        found = {name: self._tensors[name] for name in sorted(set(names)) if name in self._tensors}
        if sum(tensor.nbytes for tensor in found.values()) > MOST_BYTES:
            return {}
        return {name: base64.b64encode(_bytes(tensor)).decode() for name, tensor in found.items()}

    def borrow(self, values: Mapping[str, str]) -> None:
        """Puts another rank's values in until `give_back`; those that do not fit are left out."""
        with torch.no_grad():
            for name, text in values.items():
                tensor, data = self._tensors.get(name), base64.b64decode(text)
                if tensor is not None and name not in self._fixed and tensor.nbytes == len(data) > 0:
                    self._own.setdefault(name, tensor.detach().clone())
                    bits = torch.frombuffer(bytearray(data), dtype=tensor.dtype)
                    tensor.copy_(bits.reshape(tensor.shape))

    def give_back(self) -> None:
        """Puts the rank's own values back, bit for bit."""
        with torch.no_grad():
            for name, value in self._own.items():
                self._tensors[name].copy_(value)
        self._own = {}


def _bytes(tensor: Tensor) -> bytes:
    return borrowed(bytes_of(tensor.detach().to("cpu"))).tobytes()


def _digest(tensor: Tensor) -> str:
    kind: Sequence[object] = (tensor.dtype, tuple(tensor.shape))
    return xxhash.xxh3_64_hexdigest(repr(kind).encode() + _bytes(tensor))
