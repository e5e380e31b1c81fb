"""Reads one checkpoint file; hostile bytes are refused before they are decoded or allocated for.

The order of checks is the guarantee: a regular file and no link, mark and version, footer, sizes against the
file's own, the index's checksum before it is decompressed, its tables before they are used, and each stream's
checksum before it is handed out.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import accumulate
from os import PathLike
from types import TracebackType
from typing import TYPE_CHECKING

import xxhash
import zstandard

from dynaquant_core.errors import ChecksumError, CorruptFileError, TruncatedError
from dynaquant_core.format.entries import SHARED, Index, StreamEntry
from dynaquant_core.format.index import as_damage, index_from_json
from dynaquant_core.format.layout import FOOTER_BYTES, HEADER_BYTES, Footer, check_header, index_digest
from dynaquant_core.format.regular import RegularFile
from dynaquant_core.state.spec import TensorSpec

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["FileReader", "PartSource"]


class FileReader:
    """An open checkpoint file whose index is verified.

    Streams may be read from several threads at once.  Close it, or use it as a context manager.

    Args:
        path: of the file; the last component must not be a link.

    Attributes:
        index: the verified `Index`.
        digest: identity of the file, 32 hexadecimal digits.
        nbytes: size of the file.

    Raises:
        UnsafePathError: not a regular file.
        StorageError: the operating system refuses to open or read it.
        TruncatedError, ChecksumError, LimitError, VersionError, CorruptFileError: not a whole file of a
            version that this reader knows.
    """

    def __init__(self, path: str | PathLike[str]) -> None:
        self._file = RegularFile(path)
        self.nbytes = self._file.nbytes
        try:
            self.index, self.digest = self._open()
        except BaseException:
            self._file.close()
            raise
        lengths = (stream.nbytes for stream in self.index.streams)
        self._offsets = list(accumulate(lengths, initial=HEADER_BYTES))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def descriptor(self) -> int:
        """The open file's number in this process."""
        return self._file.descriptor

    def close(self) -> None:
        """Closes the file; the index stays usable."""
        self._file.close()

    def source(self, part: str) -> PartSource:
        """The streams of one part, for its method's decoder."""
        return PartSource(self, part)

    def verify(self) -> None:
        """Reads every stream and compares its checksum.

        Raises:
            ChecksumError: the first stream whose bytes changed; names it.
        """
        for number in range(len(self.index.streams)):
            self.read(number)

    def read(self, number: int) -> memoryview:
        """The bytes of the stream of that number, verified.

        Raises:
            ChecksumError: they are not the bytes that were written.
        """
        entry, offset = self.index.streams[number], self._offsets[number]
        payload = self._file.read(offset, entry.nbytes)
        if xxhash.xxh3_64_intdigest(payload) != entry.checksum:
            raise ChecksumError(
                f"{self._file.path}: the {entry.kind!r} stream of {self._owner(entry)} ({entry.nbytes} bytes "
                f"at {offset}) does not match its checksum; restore the file from a copy or use another step."
            )
        return payload

    def _owner(self, entry: StreamEntry) -> str:
        if entry.tensor == SHARED:
            return f"the part {entry.part!r}"
        return f"the tensor {self.index.tensors[entry.tensor].name!r}"

    def _open(self) -> tuple[Index, str]:
        path = self._file.path
        check_header(bytes(self._file.read(0, min(HEADER_BYTES, self.nbytes))), path)
        if self.nbytes < HEADER_BYTES + FOOTER_BYTES:
            raise TruncatedError(f"{path} ends after {self.nbytes} bytes; it was cut off.")
        tail = bytes(self._file.read(self.nbytes - FOOTER_BYTES, FOOTER_BYTES))
        footer = Footer.unpack(tail, self.nbytes, path)
        stored = bytes(self._file.read(footer.offset, footer.stored))
        if index_digest(footer.offset, stored, footer.raw) != footer.digest:
            raise ChecksumError(f"{path}: the index does not match its checksum; the file is damaged.")
        with as_damage(path):
            try:
                index = index_from_json(_decompressed(stored, footer.raw))
            except CorruptFileError as error:
                raise type(error)(f"{path}: {error}") from error
        _check_coverage(index, footer, path)
        return index, footer.digest.hex()


class PartSource:
    """A `StreamSource` (methods.base) on one part of a file.

    Attributes:
        specs: shape and dtype of the part's tensors by name, in the order of the file.
    """

    def __init__(self, reader: FileReader, part: str) -> None:
        self._reader = reader
        self._part = part
        index = reader.index
        owned = (tensor for tensor in index.tensors if tensor.part == part)
        self.specs: Mapping[str, TensorSpec] = {tensor.name: tensor.spec for tensor in owned}
        self._numbers = {
            (_name(index, stream), stream.kind): number
            for number, stream in enumerate(index.streams)
            if stream.part == part
        }

    def has(self, name: str, kind: str) -> bool:
        """Whether the stream exists."""
        return (name, kind) in self._numbers

    def get(self, name: str, kind: str) -> tuple[int, memoryview]:
        """Returns (codec id, payload), verified.

        Raises:
            CorruptFileError: the part has no such stream.
            ChecksumError: the stream's bytes changed.
        """
        number = self._numbers.get((name, kind))
        if number is None:
            raise CorruptFileError(
                f"The part {self._part!r} has no {kind!r} stream of {name or 'the part'!r}."
            )
        return self._reader.index.streams[number].codec, self._reader.read(number)


def _name(index: Index, stream: StreamEntry) -> str:
    return "" if stream.tensor == SHARED else index.tensors[stream.tensor].name


def _decompressed(stored: bytes, raw_length: int) -> bytes:
    """The index's text; the length was checked against the limit and must be the frame's own."""
    try:
        announced = zstandard.get_frame_parameters(stored).content_size
        if announced != raw_length:
            raise CorruptFileError(f"The index's frame announces {announced} bytes, the footer {raw_length}.")
        decompressor = zstandard.ZstdDecompressor()
        raw = decompressor.decompress(stored, max_output_size=raw_length, allow_extra_data=False)
    except zstandard.ZstdError as error:
        raise CorruptFileError(f"The index does not decompress: {error}.") from error
    if len(raw) != raw_length:
        raise CorruptFileError(f"The index has {len(raw)} bytes, the footer announces {raw_length}.")
    return bytes(raw)


def _check_coverage(index: Index, footer: Footer, path: str) -> None:
    """Streams lie back to back: no hole where something could hide, no overlap."""
    end = HEADER_BYTES + sum(stream.nbytes for stream in index.streams)
    if end != footer.offset:
        raise CorruptFileError(
            f"{path}: its streams end at byte {end}, but its index begins at {footer.offset}."
        )
