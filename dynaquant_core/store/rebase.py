"""Writes a checkpoint anew on another base, or on none, so that it decodes to the same bits.

A method that can write a key checkpoint of what a reader holds has a method ``rekey(reference)`` returning
streams.  For the others a fresh draft is tried.  Nothing is trusted: the new streams are decoded, compared
bit for bit, and where they differ the tensors are stored exactly.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Protocol, runtime_checkable

from torch import Tensor

from dynaquant_core.errors import ConfigError
from dynaquant_core.methods.base import Hints, Method, Reference, Stream
from dynaquant_core.methods.exact import Exact
from dynaquant_core.store.catalogue import Entry, Scan
from dynaquant_core.store.chain import Chain, open_chain
from dynaquant_core.store.meta import PartMeta
from dynaquant_core.store.parts import HeldPart
from dynaquant_core.store.revision import Written, decodes, link_to, own_streams, write_revision

__all__ = ["Rekeying", "as_key", "drafted", "rebase"]


@runtime_checkable
class Rekeying(Protocol):
    """A method that can write what a reader holds as a key checkpoint."""

    def rekey(self, reference: Reference) -> Iterable[Stream]:
        """Streams that decode, without a base, to an equal reference."""
        ...


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
        if base is not None and parts is not None:
            return write_revision(scan, chain.last, parts, link_to(base), links=entry.meta.links)
        parts = {part: as_key(value, chain.method(part)) for part, value in held.items()}
        return write_revision(scan, chain.last, parts, None)


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
        streams = list(own_streams(chain.last, part))
        if not _decodes(chain.method(part), value, streams, reference):
            return None
        parts[part] = value.written, streams
    return parts


def _is_written_alike(left: HeldPart, right: HeldPart) -> bool:
    return (left.written.method, left.written.options) == (right.written.method, right.written.options)


def as_key(held: HeldPart, method: Method) -> Written:
    """A part as a key: by its own method where that gives the same bits, else exactly."""
    streams = _rekeyed(held, method)
    if streams is not None and _decodes(method, held, streams, None):
        return held.written, streams
    exact = Exact()
    streams = drafted(exact, held.reference.state(), exact.space(gradients=False).default)
    return PartMeta(exact.name, exact.options(), {}), streams


def _rekeyed(held: HeldPart, method: Method) -> list[Stream] | None:
    if isinstance(method, Rekeying):
        return list(method.rekey(held.reference))
    try:
        return drafted(method, held.reference.state(), method.config(held.written.config))
    except ConfigError:  # the point needs what is not at hand any more (gradients)
        return None


def drafted(
    method: Method, state: Mapping[str, Tensor], config: object, under: Reference | None = None
) -> list[Stream]:
    """The streams of a fresh draft; whether they decode to the very bits is another question."""
    draft = method.draft(state, under, config, Hints())
    draft.detach()
    return list(draft.encode()[0])


def _decodes(method: Method, held: HeldPart, streams: Iterable[Stream], under: Reference | None) -> bool:
    return decodes(method, held.specs, streams, under, held.reference.items())
