"""The fixed bytes at both ends of a file (docs/FORMAT.md, "Layout").

A header of 12 bytes, streams back to back, the compressed index, a footer of 48 bytes.  The index stands
at the end so that streams can be written one by one; a file that was cut anywhere lacks its footer.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Final

import xxhash

from dynaquant_core.errors import CorruptFileError, LimitError, TruncatedError, VersionError
from dynaquant_core.format.limits import MAX_INDEX_BYTES

__all__ = [
    "FOOTER_BYTES",
    "FORMAT_VERSION",
    "HEADER_BYTES",
    "MAGIC",
    "Footer",
    "check_header",
    "index_digest",
]

#: Not text (first byte), changed by a transfer that translates line ends.
MAGIC: Final = b"\x89DQCP\r\n\x1a"
END: Final = b"\x1a\n\rPCQD\x89"
FORMAT_VERSION: Final = 1

_HEADER: Final = struct.Struct("<8sI")
_FOOTER: Final = struct.Struct("<QQQ16s8s")
_LENGTHS: Final = struct.Struct("<QQQ")

HEADER_BYTES: Final = _HEADER.size
FOOTER_BYTES: Final = _FOOTER.size


def header() -> bytes:
    """The first bytes of every file of this version."""
    return _HEADER.pack(MAGIC, FORMAT_VERSION)


def check_header(data: bytes, path: str) -> None:
    """Checks magic and version.

    Args:
        data: the first `HEADER_BYTES` bytes of the file, or all of them if it is shorter.
        path: named in errors.

    Raises:
        TruncatedError: the file is empty or ends inside the header.
        CorruptFileError: not a file of ours.
        VersionError: written by a newer format version.
    """
    if not MAGIC.startswith(data[: len(MAGIC)]):
        raise CorruptFileError(
            f"{path} is not a DynaQuant checkpoint: it does not begin with the format's mark."
        )
    if len(data) < HEADER_BYTES:
        raise TruncatedError(f"{path} ends after {len(data)} bytes, inside its header; it was cut off.")
    version: int = _HEADER.unpack(data)[1]
    if version > FORMAT_VERSION:
        raise VersionError(
            f"{path} has format version {version}, this is DynaQuant's reader of version {FORMAT_VERSION}; "
            "get a newer DynaQuant and run in its folder: python -m pip install ."
        )
    if version != FORMAT_VERSION:
        raise CorruptFileError(f"{path} has format version {version}, which never existed.")


@dataclass(frozen=True, slots=True)
class Footer:
    """Where the index is.

    Args:
        offset: of the compressed index from the start of the file.
        stored: its compressed length.
        raw: its length, decompressed.
        digest: `index_digest`; the identity of the file.
    """

    offset: int
    stored: int
    raw: int
    digest: bytes

    def pack(self) -> bytes:
        """The last `FOOTER_BYTES` bytes of the file."""
        return _FOOTER.pack(self.offset, self.stored, self.raw, self.digest, END)

    @classmethod
    def unpack(cls, data: bytes, file_bytes: int, path: str) -> Footer:
        """Reads a footer and checks it against the size of the file and the limits.

        Args:
            data: the last `FOOTER_BYTES` bytes of the file.
            file_bytes: size of the file, at least header and footer.
            path: named in errors.

        Raises:
            TruncatedError: the end mark is missing.
            CorruptFileError: the index does not lie exactly between streams and footer.
            LimitError: the index announces more bytes than the format allows.
        """
        offset, stored, raw, digest, end = _FOOTER.unpack(data)
        if end != END:
            raise TruncatedError(f"{path} does not end with the format's mark; it was cut off or added to.")
        if offset < HEADER_BYTES or offset + stored != file_bytes - FOOTER_BYTES:
            raise CorruptFileError(
                f"{path} has {file_bytes} bytes, but its footer puts {stored} bytes of index at {offset}."
            )
        if raw > MAX_INDEX_BYTES:
            raise LimitError(f"{path} announces an index of {raw} bytes; the limit is {MAX_INDEX_BYTES}.")
        return cls(offset, stored, raw, digest)


def index_digest(offset: int, stored_index: bytes, raw_length: int) -> bytes:
    """xxh3_128 over the header, the footer's three lengths and the compressed index.

    Every checksum of the file is inside the index, so this one number stands for the whole file.
    """
    digest = xxhash.xxh3_128(header())
    digest.update(_LENGTHS.pack(offset, len(stored_index), raw_length))
    digest.update(stored_index)
    return digest.digest()
