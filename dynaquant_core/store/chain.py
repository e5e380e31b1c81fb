"""From a checkpoint file back to its key, and forward again to what a reader holds.

All files of a chain are opened before the first is decoded: a writer that retires them meanwhile cannot take
them away from a reader that has begun.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from dynaquant_core.arithmetic import plainly
from dynaquant_core.errors import CorruptFileError, DynaQuantError, LimitError, MissingBaseError
from dynaquant_core.format import FileReader, Index
from dynaquant_core.methods.base import Method, Reference, StreamSource
from dynaquant_core.methods.moments import MOMENTS
from dynaquant_core.methods.registry import resolve_method
from dynaquant_core.state import TensorSpec
from dynaquant_core.store.catalogue import Entry, Scan
from dynaquant_core.store.descriptors import make_room
from dynaquant_core.store.disk import file_identity, guarded
from dynaquant_core.store.meta import BaseLink, Meta, PartMeta
from dynaquant_core.store.parts import Base, HeldPart
from dynaquant_core.store.room import require_room

__all__ = ["MAX_DEPTH", "Chain", "Decoded", "Link", "chain_of", "open_chain"]

#: Longest chain that is followed, whatever a file claims.
MAX_DEPTH = 1024


@dataclass(frozen=True, slots=True)
class Link:
    """One open file of a chain."""

    entry: Entry
    reader: FileReader
    identity: tuple[int, int, int]

    @property
    def index(self) -> Index:
        """The file's index."""
        return self.reader.index

    @property
    def meta(self) -> Meta:
        """Its description."""
        return self.entry.meta

    @property
    def weights(self) -> PartMeta | None:
        """How a run that goes on from it writes weights (`Meta.weights`)."""
        return self.meta.weights

    def specs(self, part: str) -> dict[str, TensorSpec]:
        """Names, shapes and dtypes of a part's tensors."""
        return {tensor.name: tensor.spec for tensor in self.index.tensors if tensor.part == part}


@dataclass(frozen=True, slots=True)
class Decoded:
    """A checkpoint that was decoded in full: what builds on it need not begin at the key.

    Args:
        digest: of its file.
        parts: what a reader of it holds; lent to one reader, whose method may go on in the same memory.
    """

    digest: str
    parts: Mapping[str, HeldPart]


class Chain:
    """The open files from a key to the checkpoint wanted, in this order.

    Args:
        links: key first; or the file of ``known`` first.
        own: the method object of the store, for files of a method that no registry knows.
        known: what a reader of the first file holds; None: the first is a key.
    """

    def __init__(self, links: Sequence[Link], own: Method | None, known: Decoded | None = None) -> None:
        self._links = list(links)
        self._own = own
        self._known = known

    @property
    def last(self) -> Link:
        """The checkpoint wanted."""
        return self._links[-1]

    @property
    def links(self) -> tuple[Link, ...]:
        """Its files, key first."""
        return tuple(self._links)

    def verify(self) -> None:
        """Reads every byte of every file against its checksums; raises CorruptFileError."""
        for link in self._links:
            link.reader.verify()

    @plainly
    def hold(self, names: Iterable[str] | None = None, *, whole: bool = False) -> dict[str, HeldPart]:
        """Decodes every part.

        Args:
            names: restricts the tensors; None = all.
            whole: all the tensors are then to be in host memory at once.

        Raises:
            LimitError: this process cannot have the memory for them; nothing was decoded.
            CorruptFileError: a stream is damaged, or the links do not belong together.
            UnknownMethodError: a part was written by a method that is not installed.
        """
        wanted = None if names is None else set(names)
        entries = [each for each in self.last.index.tensors if wanted is None or each.name in wanted]
        require_room(self.last.entry.path, entries, self.last.meta.parts, whole=whole)
        held = {part: self._hold_part(part, wanted) for part in self.last.meta.parts}
        return {part: value for part, value in held.items() if value is not None}

    def _hold_part(self, part: str, wanted: set[str] | None) -> HeldPart | None:
        specs = self.last.specs(part)
        chosen = None if wanted is None else [name for name in specs if name in wanted]
        if not specs or chosen == []:
            return None
        written = self.last.meta.parts[part]
        method = self.method(part)
        reference: Reference | None = None
        links = self._links_of(part, specs, written)
        if self._known is not None and links[0] is self._links[0]:
            reference, links = self._known.parts[part].reference, links[1:]
        for link in links:
            reference = _decoded(method, link, part, reference, chosen)
        assert reference is not None  # a chain has at least its key
        return HeldPart(written, specs, reference)

    def _links_of(self, part: str, specs: dict[str, TensorSpec], written: PartMeta) -> list[Link]:
        """The links that a part is decoded through: back to the key, or to where its tensors changed last.

        A delta's weights must speak of its base's tensors in its base's language; a smaller part that does
        not was written to stand alone (see `parts.Base.reference`).
        """
        found: list[Link] = []
        for link in reversed(self._links):
            if not _is_alike(link, part, specs, written):
                self._require_restart(link, part)
                break
            found.append(link)
        return found[::-1]

    def _require_restart(self, link: Link, part: str) -> None:
        if part == "weights":
            raise CorruptFileError(
                f"{self.last.entry.path.name} and its base {link.entry.path.name} do not belong together: "
                f"the part {part!r} holds other tensors or is of another method."
            )

    def sources(self, part: str, count: int) -> list[StreamSource]:
        """A part's streams in each of the last ``count`` files, oldest first, read on demand.

        Raises:
            CorruptFileError: not all of them speak of the same tensors in the same language.
        """
        links, last = self._links[-count:], self.last
        for link in links:
            if not _is_alike(link, part, last.specs(part), last.meta.parts[part]):
                self._require_restart(link, part)
        return [link.reader.source(part) for link in links]

    def reference(self, part: str, above: Link) -> Reference | None:
        """What a part of ``above`` is decoded on where this chain is its base; None: it stands alone."""
        specs = above.specs(part)
        if not _is_alike(self.last, part, specs, above.meta.parts[part]):
            return None
        held = self.hold(specs).get(part)
        return held.reference if held is not None else None

    def method(self, part: str) -> Method:
        """The method that reads a part of the checkpoint wanted; raises UnknownMethodError."""
        written, own = self.last.meta.parts[part], self._own
        if part == "moments" and written.method in MOMENTS:
            return MOMENTS[written.method]()
        if own is not None and (own.name, own.options()) == (written.method, written.options):
            return own
        return resolve_method(written.spec())

    def base(self, parts: dict[str, HeldPart]) -> Base:
        """What the next save may build on, once ``parts`` were decoded in full."""
        first, last = self._links[0].entry, self.last.entry
        spent = last.exact_bytes if len(self._links) > 1 else 0  # by a delta; of a first one nothing is known
        return Base(
            link=BaseLink(last.step, last.meta.sequence, last.digest),
            depth=len(self._links) - 1,
            parts=parts,
            key_bytes=first.weights_bytes,
            newest_bytes=last.weights_bytes,
            spared=max(first.exact_bytes - spent, 0),
            files=tuple((link.entry.path, link.identity) for link in self._links),
        )


def _is_alike(link: Link, part: str, specs: dict[str, TensorSpec], written: PartMeta) -> bool:
    theirs = link.meta.parts.get(part)
    same = theirs is not None and (theirs.method, theirs.options) == (written.method, written.options)
    return same and list(link.specs(part).items()) == list(specs.items())


@contextmanager
def open_chain(
    scan: Scan, entry: Entry, own: Method | None = None, known: Decoded | None = None
) -> Iterator[Chain]:
    """Opens ``entry`` and every base below it; each index is verified.

    With ``known``, which is the base of ``entry``, only the two are opened.

    Raises:
        MissingBaseError: a base is not in the store; names it.
        CorruptFileError, StorageError: a file cannot be read.
        LimitError: the chain is deeper than any that is written.
    """
    files = chain_of(scan, entry)[: None if known is None else 2]
    with ExitStack() as stack:
        yield Chain([_open(stack, file) for file in files][::-1], own, known)


def chain_of(scan: Scan, entry: Entry) -> list[Entry]:
    """``entry`` and all that it builds on, the key last; nothing is opened.

    Raises:
        MissingBaseError: a base is not in the store; names it.
        LimitError: the chain is deeper than any that is written.
    """
    found: list[Entry] = []
    current: Entry | None = entry
    while current is not None:
        if len(found) > MAX_DEPTH:
            raise LimitError(
                f"{entry.path.name} stands on more than {MAX_DEPTH} checkpoints; it is not sound."
            )
        found.append(current)
        current = _base_of(scan, current)
    return found


def _open(stack: ExitStack, entry: Entry) -> Link:
    with guarded("read", entry.path):
        identity = file_identity(entry.path)
        reader = stack.enter_context(FileReader(entry.path))
        make_room(reader.descriptor, stack)
    if reader.digest != entry.digest:
        raise CorruptFileError(
            f"{str(entry.path)!r} was replaced by another checkpoint while it was looked up."
        )
    return Link(entry, reader, identity)


def _base_of(scan: Scan, entry: Entry) -> Entry | None:
    link = entry.meta.base
    if link is None:
        return None
    base = scan.by_digest(link.digest)
    if base is None:
        raise MissingBaseError(
            f"{entry.path.name} builds on the checkpoint of step {link.step} (sequence {link.sequence}, "
            f"digest {link.digest}), which is not in the store or is damaged; "
            "load another step or bring that file back."
        )
    return base


def _decoded(
    method: Method, link: Link, part: str, below: Reference | None, names: list[str] | None
) -> Reference:
    """A part of one file; what a method of somebody else raises says whose it is."""
    try:
        return method.decode(link.reader.source(part), below, names)
    except (DynaQuantError, OSError, MemoryError):
        raise
    except Exception as error:
        if type(method).__module__.startswith("dynaquant_core."):
            raise
        raise CorruptFileError(
            f"{link.entry.path.name}: the method {method.name!r} fails to read it ({type(error).__name__}: "
            f"{error}); where it reads other files this one is damaged, else the method is to be mended."
        ) from error
