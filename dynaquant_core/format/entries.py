"""What the index says: a dataclass a table (docs/FORMAT.md, "Index")."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from dynaquant_core.state.spec import TensorSpec

__all__ = ["SHARED", "Index", "StreamEntry", "TensorEntry"]

#: `StreamEntry.tensor` of a stream that belongs to all tensors of its part.
SHARED = -1


@dataclass(frozen=True, slots=True)
class TensorEntry:
    """One tensor of the state.

    Args:
        name: its dotted name, unique in the file.
        shape: its shape.
        dtype: torch's name of its dtype, without the prefix.
        role: "weight", "moment" or "exact".
        part: the part whose method stored it.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    role: Literal["weight", "moment", "exact"]
    part: str

    @property
    def spec(self) -> TensorSpec:
        """Shape and dtype."""
        return TensorSpec(self.shape, self.dtype)


@dataclass(frozen=True, slots=True)
class StreamEntry:
    """One stream; its offset follows from the lengths of those before it.

    Args:
        part: the part it belongs to.
        tensor: index of its tensor in the table of tensors, or `SHARED`.
        kind: the method's own word.
        codec: id of the codec that wrote it, 0 to 255.
        nbytes: its length.
        checksum: xxh3_64 of its bytes.
    """

    part: str
    tensor: int
    kind: str
    codec: int
    nbytes: int
    checksum: int


@dataclass(frozen=True, slots=True)
class Index:
    """The whole index of one file.

    Args:
        meta: step, sequence, kind, base, parts and what else the writer wants to say (`check_meta`).
        skeleton: of the state's tree (`state.tree`); its leaves are ``tensors``, in order.
        tensors: one entry a leaf.
        streams: in the order of the file.
    """

    meta: dict[str, Any]
    skeleton: Any
    tensors: tuple[TensorEntry, ...]
    streams: tuple[StreamEntry, ...]
