"""Writes a checkpoint anew on another base, or on none, so that it decodes to the same bits.

A method that can write a key checkpoint of what a reader holds has a method ``rekey(reference)`` returning
streams.  For the others a fresh draft is tried.  Nothing is trusted: the new streams are decoded, compared
bit for bit, and where they differ the tensors are stored exactly.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Protocol, runtime_checkable

from torch import Tensor

from dynaquant_core.errors import ConfigError, CorruptFileError
from dynaquant_core.format import FileWriter
from dynaquant_core.methods.base import Hints, Method, Reference, Stream
from dynaquant_core.methods.exact import Exact
from dynaquant_core.state import TensorSpec, words_of
from dynaquant_core.store.catalogue import Entry, Scan, read_entry
from dynaquant_core.store.chain import Chain, open_chain
from dynaquant_core.store.commit import atomic_file
from dynaquant_core.store.disk import require_space
from dynaquant_core.store.meta import BaseLink, PartMeta
from dynaquant_core.store.names import checkpoint_name, parse_name
from dynaquant_core.store.parts import HeldPart

__all__ = ["Rekeying", "rebase"]

#: A part written anew: how, and its streams.
Written = tuple[PartMeta, list[Stream]]


@runtime_checkable
class Rekeying(Protocol):
    """A method that can write what a reader holds as a key checkpoint."""

    def rekey(self, reference: Reference) -> Iterable[Stream]:
        """Streams that decode, without a base, to an equal reference."""
        ...


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


def rebase(scan: Scan, entry: Entry, base: Entry | None, own: Method | None) -> Entry:
    """Commits ``entry`` anew as its next revision.

    Args:
        scan: a look at the folder that holds both.
        entry: what to write anew.
        base: what it shall build on, decoding to the same bits as its present base; None: a key.
        own: the store's method object.

    Returns:
        The new file, which supersedes ``entry``; a key where it cannot build on ``base``.

    Raises:
        CorruptFileError, MissingBaseError: ``entry`` cannot be read.
        StorageError: the system refused; nothing changed.
    """
    with open_chain(scan, entry, own) as chain:
        held = chain.hold()
        parts = _as_delta(scan, chain, held, base, own) if base else None
        link = BaseLink(base.step, base.meta.sequence, base.digest) if base and parts is not None else None
        if parts is None:
            parts = {part: _as_key(value, chain.method(part)) for part, value in held.items()}
        return _commit(scan, chain, parts, link)


def _commit(scan: Scan, chain: Chain, parts: Mapping[str, Written], link: BaseLink | None) -> Entry:
    entry, index = chain.last.entry, chain.last.index
    described = {part: written for part, (written, _) in parts.items()}
    meta = replace(entry.meta, revision=_next_revision(scan, entry), base=link, parts=described)
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


def _as_delta(
    scan: Scan, chain: Chain, held: Mapping[str, HeldPart], base: Entry, own: Method | None
) -> dict[str, Written] | None:
    """The streams as they are, if they decode to the same bits against ``base``."""
    with open_chain(scan, base, own) as below:
        under = below.hold()
    parts: dict[str, Written] = {}
    for part, value in held.items():
        theirs = under.get(part)
        alike = theirs is not None and list(theirs.specs.items()) == list(value.specs.items())
        if theirs is not None and alike and not _is_written_alike(theirs, value):
            return None
        reference = theirs.reference if theirs is not None and alike else None  # else it stands alone
        streams = list(_streams(chain, part))
        if not _decodes(chain.method(part), value, streams, reference):
            return None
        parts[part] = value.written, streams
    return parts


def _is_written_alike(left: HeldPart, right: HeldPart) -> bool:
    return (left.written.method, left.written.options) == (right.written.method, right.written.options)


def _streams(chain: Chain, part: str) -> Iterable[Stream]:
    index, reader = chain.last.index, chain.last.reader
    for number, stream in enumerate(index.streams):
        if stream.part == part:
            name = index.tensors[stream.tensor].name if stream.tensor >= 0 else ""
            yield Stream(name, stream.kind, stream.codec, bytes(reader.read(number)))


def _as_key(held: HeldPart, method: Method) -> Written:
    """The part as a key: by its own method where that gives the same bits, else exactly."""
    streams = _rekeyed(held, method)
    if streams is not None and _decodes(method, held, streams, None):
        return held.written, streams
    exact = Exact()
    streams = _drafted(exact, held.reference.state(), exact.space(gradients=False).default)
    return PartMeta(exact.name, exact.options(), {}), streams


def _rekeyed(held: HeldPart, method: Method) -> list[Stream] | None:
    if isinstance(method, Rekeying):
        return list(method.rekey(held.reference))
    try:
        return _drafted(method, held.reference.state(), method.config(held.written.config))
    except ConfigError:  # the point needs what is not at hand any more (gradients)
        return None


def _drafted(method: Method, state: Mapping[str, Tensor], config: object) -> list[Stream]:
    draft = method.draft(state, None, config, Hints())
    draft.detach()
    return list(draft.encode()[0])


def _decodes(method: Method, held: HeldPart, streams: Iterable[Stream], under: Reference | None) -> bool:
    """Whether ``streams`` decode against ``under`` to the bits of ``held``."""
    try:
        found = method.decode(TableSource(held.specs, streams), under).items()
        pairs = zip(found, held.reference.items(), strict=True)
        return all(name == known and same_bits(ours, theirs) for (name, ours), (known, theirs) in pairs)
    except (CorruptFileError, ValueError):
        return False


def same_bits(left: Tensor, right: Tensor) -> bool:
    """Whether two tensors have one shape, one dtype and the same bits."""
    if TensorSpec.of(left) != TensorSpec.of(right):
        return False
    return bool((words_of(left) == words_of(right)).all())
