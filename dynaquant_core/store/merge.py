"""Writes a checkpoint anew on an older base: the links between become one, by its method's own `merge`.

    key  1  2  3  4      ->      key  4'        4' decodes to the bits of 4

What lies between stays until retention lets it go.  A part that its method cannot merge keeps its streams
where they decode on the older base too, and is drafted afresh where they do not.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass

from dynaquant_core.methods.base import Merging, Method, Reference
from dynaquant_core.methods.exact import Exact
from dynaquant_core.store.catalogue import Entry, Scan
from dynaquant_core.store.chain import Chain, Link, open_chain
from dynaquant_core.store.rebase import as_key, drafted
from dynaquant_core.store.revision import Written, decodes_like, link_to, own_streams, write_revision

__all__ = ["merge"]

logger = logging.getLogger(__name__)


def merge(scan: Scan, entry: Entry, base: Entry, own: Method | None) -> Entry | None:
    """Commits ``entry`` anew as its next revision, built on ``base``.

    In memory are what a reader of ``base`` holds of one part, the new streams, and a group of tensors.

    Args:
        scan: a look at the folder that holds both.
        entry: what to write anew.
        base: a checkpoint below it in its chain, or a revision of one.
        own: the store's method object.

    Returns:
        The new file, which supersedes ``entry``.  None, and nothing changed, where the streams cannot be made
        to decode to the same bits, or where those in place of several links are not smaller than theirs.

    Raises:
        CorruptFileError, MissingBaseError: a file of either chain cannot be read.
        StorageError: the system refused; nothing changed.
    """
    with open_chain(scan, entry, own) as chain, open_chain(scan, base, own) as below:
        links = [link for link in chain.links if link.entry.meta.sequence > base.meta.sequence]
        parts = _Parts(chain, below, links).written()
        if parts is None:
            return None
        stands_for = sum(link.meta.links for link in links)
        return write_revision(scan, chain.last, parts, link_to(base), links=stands_for)


@dataclass(frozen=True, slots=True)
class _Parts:
    """The parts of one file.

    Args:
        chain: of the checkpoint.
        below: of its new base.
        links: what it stands for: the last ones of ``chain``.
    """

    chain: Chain
    below: Chain
    links: list[Link]

    def written(self) -> dict[str, Written] | None:
        """All of them, verified; None where one cannot be had or nothing would be gained."""
        last = self.chain.last
        parts: dict[str, Written] = {}
        for part in last.meta.parts:
            written = self._merged() if part == "weights" else self._other(part)
            if written is None:
                logger.info("%s stays on its base: its %s cannot be merged", last.entry.path.name, part)
                return None
            parts[part] = written
        return parts if "weights" in parts and self._gains(parts) else None

    def _merged(self) -> Written | None:
        """Merged; the streams as they are where there is one link."""
        chain, last = self.chain, self.chain.last
        method, under = chain.method("weights"), self.below.reference("weights", last)
        streams = list(own_streams(last, "weights"))
        if len(self.links) > 1:
            if under is None or not isinstance(method, Merging):
                return None
            streams = list(method.merge(chain.sources("weights", len(self.links)), under))
        good = decodes_like(chain, "weights", method, streams, under)
        return (last.meta.parts["weights"], streams) if good else None

    def _other(self, part: str) -> Written | None:
        """The first form of a part that decodes, on the new base, to the same bits."""
        under, written = self.below.reference(part, self.chain.last), self.chain.last.meta.parts[part]
        for described, streams in self._forms(part, under):
            alike = (described.method, described.options) == (written.method, written.options)
            method = self.chain.method(part) if alike else Exact()
            if decodes_like(self.chain, part, method, streams, under if alike else None):
                return described, streams
        return None

    def _forms(self, part: str, under: Reference | None) -> Iterator[Written]:
        """Its streams as they are, a fresh delta, a key; each is made only when it is asked for."""
        method, written = self.chain.method(part), self.chain.last.meta.parts[part]
        yield written, list(own_streams(self.chain.last, part))
        held = self.chain.hold(self.chain.last.specs(part))[part]
        config = method.config(written.config)
        yield written, drafted(method, held.reference.state(), config, under)
        yield as_key(held, method)

    def _gains(self, parts: dict[str, Written]) -> bool:
        """Whether a restore reads fewer bytes; always, where no link is saved."""
        if len(self.links) == 1:
            return True
        before = sum(stream.nbytes for link in self.links for stream in link.index.streams)
        after = sum(len(stream.payload) for _, streams in parts.values() for stream in streams)
        name, count = self.chain.last.entry.path.name, len(self.links)
        logger.info("%s in place of %d links: %d bytes, theirs %d", name, count, after, before)
        return after < before
