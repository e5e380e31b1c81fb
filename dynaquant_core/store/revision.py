"""One more revision of a checkpoint: other streams or another base, and every tensor to the same bits.

Nothing is trusted: streams are decoded as a reader of the new file will, and compared with what a reader of
the present one gets, a group of tensors at a time.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Final

from torch import Tensor

from dynaquant_core.errors import CorruptFileError, MissingBaseError
from dynaquant_core.format import FileWriter
from dynaquant_core.methods.base import Method, Reference, Stream
from dynaquant_core.state import TensorSpec, words_of
from dynaquant_core.store.catalogue import Entry, Scan, read_entry
from dynaquant_core.store.chain import Chain, Link
from dynaquant_core.store.commit import atomic_file
from dynaquant_core.store.disk import require_space
from dynaquant_core.store.meta import BaseLink, PartMeta
from dynaquant_core.store.names import checkpoint_name, parse_name

__all__ = ["TableSource", "Written", "decodes", "decodes_like", "link_to", "own_streams", "write_revision"]

#: A part written anew: how, and its streams.
Written = tuple[PartMeta, list[Stream]]

#: Decoded bytes that are compared at once.
GROUP_BYTES: Final = 1 << 26


class TableSource:
    """A `StreamSource` over streams in memory.

    Args:
        specs: shape and dtype of the part's tensors by name.
        streams: of the part.
    """

    def __init__(self, specs: Mapping[str, TensorSpec], streams: Iterable[Stream]) -> None:
        self.specs = specs
        self._streams = {(stream.name, stream.kind): stream for stream in streams}

    def has(self, name: str, kind: str) -> bool:
        """Whether the stream exists."""
        return (name, kind) in self._streams

    def get(self, name: str, kind: str) -> tuple[int, memoryview]:
        """Returns (codec id, payload); raises CorruptFileError where the stream is missing."""
        stream = self._streams.get((name, kind))
        if stream is None:
            raise CorruptFileError(f"There is no {kind!r} stream of {name or 'the part'!r}.")
        return stream.codec, memoryview(stream.payload)


def own_streams(link: Link, part: str) -> Iterator[Stream]:
    """The streams of one part of an open file, as they are; raises ChecksumError for a damaged one."""
    index, reader = link.index, link.reader
    for number, stream in enumerate(index.streams):
        if stream.part == part:
            name = index.tensors[stream.tensor].name if stream.tensor >= 0 else ""
            yield Stream(name, stream.kind, stream.codec, bytes(reader.read(number)))


def decodes(
    method: Method,
    specs: Mapping[str, TensorSpec],
    streams: Iterable[Stream],
    under: Reference | None,
    expected: Iterable[tuple[str, Tensor]],
    names: Iterable[str] | None = None,
) -> bool:
    """Whether streams decode against ``under`` to these bits: of all tensors, or of those of ``names``."""
    try:
        found = method.decode(TableSource(specs, streams), under, names).items()
        pairs = zip(found, expected, strict=True)
        return all(name == known and same_bits(ours, theirs) for (name, ours), (known, theirs) in pairs)
    except (CorruptFileError, MissingBaseError, ValueError):
        return False


def decodes_like(
    chain: Chain, part: str, method: Method, streams: list[Stream], under: Reference | None
) -> bool:
    """Whether streams decode against ``under`` to what the chain's checkpoint has in a part.

    Raises:
        CorruptFileError: the chain itself cannot be read.
    """
    specs = chain.last.specs(part)
    for names in _groups(specs):
        expected = chain.hold(names)[part].reference.state()
        if not decodes(method, specs, streams, under, expected.items(), names):
            return False
    return True


def _groups(specs: Mapping[str, TensorSpec]) -> Iterator[list[str]]:
    """Names in order, together at most `GROUP_BYTES` or one tensor."""
    names: list[str] = []
    size = 0
    for name, spec in specs.items():
        if names and size + spec.nbytes > GROUP_BYTES:
            yield names
            names, size = [], 0
        names.append(name)
        size += spec.nbytes
    if names:
        yield names


def same_bits(left: Tensor, right: Tensor) -> bool:
    """Whether two tensors have one shape, one dtype and the same bits."""
    if TensorSpec.of(left) != TensorSpec.of(right):
        return False
    return bool((words_of(left) == words_of(right)).all())


def link_to(base: Entry) -> BaseLink:
    """How a delta names its base."""
    return BaseLink(base.step, base.meta.sequence, base.digest)


def write_revision(
    scan: Scan, link: Link, parts: Mapping[str, Written], base: BaseLink | None, *, links: int = 1
) -> Entry:
    """Commits a checkpoint's next revision, which supersedes it.

    Args:
        scan: a look at the folder.
        link: the present file, open.
        parts: of the new one, all of them.
        base: what they build on.
        links: how many links of a chain the weights' streams stand for.

    Raises:
        StorageError: the system refused; nothing changed.
    """
    entry, index = link.entry, link.index
    described = {part: written for part, (written, _) in parts.items()}
    revision = _next_revision(scan, entry)
    own = entry.meta.weights
    unused = None if own == described.get("weights") else own
    meta = replace(entry.meta, revision=revision, base=base, parts=described, links=links, unused=unused)
    path = entry.path.with_name(checkpoint_name(meta.step, meta.sequence, meta.revision))
    size = sum(len(stream.payload) for _, streams in parts.values() for stream in streams)
    require_space(path.parent, 2 * size, lambda: size)
    with atomic_file(path) as file:
        writer = FileWriter(file)
        for part, (_, streams) in parts.items():
            for stream in streams:
                writer.add(part, stream.name, stream.kind, stream.codec, stream.payload)
        writer.finish(meta.as_dict(), index.skeleton, index.tensors)
    return read_entry(path)


def _next_revision(scan: Scan, entry: Entry) -> int:
    revisions = [other.meta.revision for other in scan.entries if other.meta.sequence == entry.meta.sequence]
    hints = [hint for item in scan.damaged if (hint := parse_name(item.name))]
    revisions += [hint.revision for hint in hints if hint.sequence == entry.meta.sequence]
    return max(revisions) + 1
