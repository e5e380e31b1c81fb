"""Writes one checkpoint file, stream by stream."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, BinaryIO, Final

import xxhash
import zstandard

from dynaquant_core.errors import CorruptFileError, StorageError
from dynaquant_core.format.entries import SHARED, Index, StreamEntry, TensorEntry
from dynaquant_core.format.index import index_to_json
from dynaquant_core.format.layout import Footer, header, index_digest

__all__ = ["FileWriter"]

#: Level of zstd for the index: slow and small while the index is small.
_LEVEL_SMALL: Final = 19
_LEVEL_LARGE: Final = 6
_SMALL_INDEX: Final = 1 << 20

Buffer = bytes | bytearray | memoryview


class FileWriter:
    """Writes header, streams, index and footer into a file that is open for writing.

    Neither flushes nor closes the file: making it durable is the caller's commit.

    Args:
        file: a binary file at position 0.

    Raises:
        StorageError: the operating system refuses a write (here and in every method).

    Example:
        >>> import io
        >>> out = io.BytesIO()
        >>> writer = FileWriter(out)
        >>> writer.add("exact", "w", "values", codec=0, payload=bytes(4))
        >>> meta = {"step": 1, "sequence": 1, "kind": "key", "base": None,
        ...         "parts": {"exact": {"method": "exact", "options": {}, "config": {}}}}
        >>> digest = writer.finish(meta, {"w": ["t"]}, [TensorEntry("w", (1,), "float32", "weight", "exact")])
        >>> writer.nbytes == len(out.getvalue()), len(digest)
        (True, 32)
    """

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._streams: list[tuple[str, StreamEntry]] = []
        self.nbytes = 0
        self._write(header())

    def add(self, part: str, name: str, kind: str, codec: int, payload: Buffer) -> None:
        """Appends one stream.

        Args:
            part: the part it belongs to.
            name: its tensor; "" for a stream shared by all tensors of the part.
            kind: the method's own word.
            codec: id of the codec that wrote it, 0 to 255.
            payload: its bytes.
        """
        checksum = xxhash.xxh3_64_intdigest(payload)
        entry = StreamEntry(part, SHARED, kind, codec, memoryview(payload).nbytes, checksum)
        self._streams.append((name, entry))
        self._write(payload)

    def finish(self, meta: Mapping[str, Any], skeleton: Any, tensors: Sequence[TensorEntry]) -> str:
        """Writes index and footer.

        Args:
            meta: see `format.meta.check_meta`.
            skeleton: of the state's tree.
            tensors: one entry a leaf of the skeleton, in its order.

        Returns:
            The digest of the file, 32 hexadecimal digits: its identity as a base.

        Raises:
            CorruptFileError: the index would not be one that a reader takes; the file is not usable.
            LimitError: the index is over a limit of the format.
        """
        number = {tensor.name: i for i, tensor in enumerate(tensors)} | {"": SHARED}
        unknown = next((name for name, _ in self._streams if name not in number), None)
        if unknown is not None:
            raise CorruptFileError(f"A stream was added for {unknown!r}, which is not among the tensors.")
        streams = tuple(replace(entry, tensor=number[name]) for name, entry in self._streams)
        raw = index_to_json(Index(dict(meta), skeleton, tuple(tensors), streams))
        level = _LEVEL_SMALL if len(raw) <= _SMALL_INDEX else _LEVEL_LARGE
        stored = zstandard.ZstdCompressor(level=level).compress(raw)
        footer = Footer(self.nbytes, len(stored), len(raw), index_digest(self.nbytes, stored, len(raw)))
        self._write(stored)
        self._write(footer.pack())
        return footer.digest.hex()

    def _write(self, data: Buffer) -> None:
        left = memoryview(data)
        while left:
            try:
                written = self._file.write(left)
            except OSError as error:
                where = getattr(self._file, "name", "the checkpoint file")
                raise StorageError(
                    f"Cannot write {where}: {error.strerror or error}; free some space."
                ) from error
            self.nbytes += written
            left = left[written:]
