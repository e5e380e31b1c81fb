"""A chain of checkpoints in memory: what a method writes, and what a reader makes of it, link by link."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, final

import torch
from torch import Tensor

from dynaquant_core.errors import CorruptFileError
from dynaquant_core.methods.base import Hints, Method, Reference, Stream, TensorSpec
from dynaquant_core.store.parts import Settings
from dynaquant_core.store.prepare import prepare

__all__ = ["Chain", "Link", "Streams"]

#: The name of the parameters where they are one array.
STATE = "parameters"


@final
class Streams:
    """A `StreamSource` (methods.base) in memory.

    Args:
        specs: of the tensors, by name.
        streams: what was written of them.
    """

    def __init__(self, specs: Mapping[str, TensorSpec], streams: Iterable[Stream]) -> None:
        self.specs: Mapping[str, TensorSpec] = dict(specs)
        self._streams = {(stream.name, stream.kind): (stream.codec, stream.payload) for stream in streams}

    @property
    def nbytes(self) -> int:
        """Bytes of all payloads."""
        return sum(len(payload) for _, payload in self._streams.values())

    def get(self, name: str, kind: str) -> tuple[int, memoryview]:
        """(codec id, payload); raises CorruptFileError where the stream is missing."""
        if not self.has(name, kind):
            raise CorruptFileError(f"There is no stream {kind!r} of the tensor {name!r}.")
        codec, payload = self._streams[name, kind]
        return codec, memoryview(payload)

    def has(self, name: str, kind: str) -> bool:
        """Whether there is such a stream."""
        return (name, kind) in self._streams


@dataclass(frozen=True, slots=True)
class Link:
    """One checkpoint.

    Args:
        raw_bytes: of the tensors in their own dtypes.
        stored_bytes: of all streams; a file adds its header and index.
        weight_bytes: of the streams of the method; what it does not take is kept bit for bit.
        save_seconds: drafting and encoding.
        read_seconds: decoding.
        restored: the parameters as a reader has them, by name.
    """

    raw_bytes: int
    stored_bytes: int
    weight_bytes: int
    save_seconds: float
    read_seconds: float
    restored: Mapping[str, Tensor]


@final
class Chain:
    """Checkpoints of one run, each written against what a writer holds and read against what a reader does.

    Parts are those of a store: the method's own tensors, and the others bit for bit.

    Args:
        method: that writes them.
        point: its configuration, the same for all.
        flat: the parameters are handed over as one matrix of one row.
    """

    def __init__(self, method: Method, point: Any, *, flat: bool) -> None:
        self._settings = Settings.of(method, "exact", ())
        self._point, self._flat = point, flat
        self._written: dict[str, Reference] = {}
        self._read: dict[str, Reference] = {}

    def save(self, step: int, parameters: Mapping[str, Tensor]) -> Link:
        """Writes a checkpoint and reads it back; the first one is a key.

        Args:
            step: iterations done.
            parameters: by name, float32; the same names and shapes every time.
        """
        state = {STATE: _joined(parameters)} if self._flat else dict(parameters)
        started = time.perf_counter()
        prepared = prepare(self._settings, step, state, gradients=None, model=None)
        prepared.hints.before = self._written.get("weights")
        sources: dict[str, Streams] = {}
        for part, tensors in prepared.division.tensors.items():
            method = prepared.division.methods[part]
            hints = prepared.hints if part == "weights" else Hints(roles=prepared.division.roles)
            point = self._point if part == "weights" else method.space(gradients=False).default
            draft = method.draft(tensors, self._written.get(part), point, hints)
            streams, self._written[part] = draft.encode()
            specs = {name: TensorSpec.of(tensor) for name, tensor in tensors.items()}
            sources[part] = Streams(specs, streams)
        written = time.perf_counter()
        restored: dict[str, Tensor] = {}
        for part, source in sources.items():
            self._read[part] = prepared.division.methods[part].decode(source, self._read.get(part))
            restored |= self._read[part].state()
        read = time.perf_counter()
        return Link(
            raw_bytes=sum(tensor.nbytes for tensor in parameters.values()),
            stored_bytes=sum(source.nbytes for source in sources.values()),
            weight_bytes=sources["weights"].nbytes if "weights" in sources else 0,
            save_seconds=written - started,
            read_seconds=read - written,
            restored=_parted(restored[STATE], parameters) if self._flat else restored,
        )


def _joined(parameters: Mapping[str, Tensor]) -> Tensor:
    return torch.cat([tensor.detach().reshape(-1) for tensor in parameters.values()])[None]


def _parted(joined: Tensor, parameters: Mapping[str, Tensor]) -> dict[str, Tensor]:
    sizes = [tensor.numel() for tensor in parameters.values()]
    parts = torch.split(joined.reshape(-1), sizes)
    return {
        name: part.reshape(tensor.shape).clone()
        for (name, tensor), part in zip(parameters.items(), parts, strict=True)
    }
