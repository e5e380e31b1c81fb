"""Which files may go: a pure function from what is on disk and what the user wants kept.

A file goes only if nothing that stays needs it.  What stays is closed under two rules: the base of a file
that stays, stays; and a file that replaces a staying file (same step, saved again) stays, so that removing
the newer one never brings the older one back.
"""

from __future__ import annotations

from collections.abc import Collection, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from dynaquant_core.config import require
from dynaquant_core.store.budget import parse_budget

__all__ = ["Policy", "Record", "current", "kept", "needed", "retired", "total"]


class Record(Protocol):
    """What retention knows about one file."""

    @property
    def step(self) -> int:
        """Completed optimizer steps."""
        ...

    @property
    def order(self) -> tuple[int, int]:
        """(commit sequence, revision): the larger is newer."""
        ...

    @property
    def digest(self) -> str:
        """Identity of the file."""
        ...

    @property
    def base_digest(self) -> str | None:
        """Identity of what it builds on; None for a key."""
        ...

    @property
    def size(self) -> int:
        """Bytes of the file."""
        ...


AnyRecord = TypeVar("AnyRecord", bound=Record)


@dataclass(frozen=True, slots=True)
class Policy:
    """What the user wants kept; without any of the three, everything is.

    Args:
        keep_last: this many of the newest checkpoints.
        keep_every: also, of each multiple of this, the first checkpoint at or after it and before the next;
            of step 0 that one alone.
        keep_within: at most this many bytes in all, the newest first; a number or a text like "100GB".

    Raises:
        ConfigError: a value is not positive, or not a number.

    Example:
        >>> Policy.of(keep_within="2MB").keep_within
        2000000
    """

    keep_last: int | None = None
    keep_every: int | None = None
    keep_within: int | None = None

    @classmethod
    def of(
        cls,
        keep_last: int | None = None,
        keep_every: int | None = None,
        keep_within: float | str | None = None,
    ) -> Policy:
        """Validates what the user gave."""
        for name, value in (("keep_last", keep_last), ("keep_every", keep_every)):
            good = value is None or (type(value) is int and value >= 1)
            require(good, f"{name} must be a whole number of at least 1 or None, got {value!r}.")
        return cls(keep_last, keep_every, parse_budget(keep_within))

    def wants(self, ranked: Sequence[AnyRecord], doubted: Container[str] = ()) -> list[AnyRecord]:
        """Those of ``ranked`` (newest first) that the first two rules keep, newest first.

        A checkpoint that is the first after a multiple stays it, however often this is asked as others come
        and go; saves that are due by time meet no multiple.  One whose digest is doubted takes no place.
        """
        if self.keep_last is None and self.keep_every is None:
            return list(ranked)
        last, every = self.keep_last or 1, self.keep_every
        marks = _marks((r.step for r in ranked if r.digest not in doubted), every) if every else frozenset()
        return [r for i, r in enumerate(ranked) if i < last or (every and _is_mark(r.step, every, marks))]


def _marks(steps: Iterable[int], every: int) -> frozenset[int]:
    """The first step at or after each multiple of ``every`` above 0.

    Example:
        >>> sorted(_marks([3, 12, 17, 20, 21, 45], every=10))
        [12, 20, 45]
    """
    first: dict[int, int] = {}
    for step in steps:
        multiple = step // every
        first[multiple] = min(step, first.get(multiple, step))
    first.pop(0, None)
    return frozenset(first.values())


def _is_mark(step: int, every: int, marks: Container[int]) -> bool:
    return step % every == 0 or step in marks


def current(records: Iterable[AnyRecord]) -> dict[int, AnyRecord]:
    """Step -> the newest file of that step; the others are superseded."""
    newest: dict[int, AnyRecord] = {}
    for record in sorted(records, key=lambda r: r.order):
        newest[record.step] = record
    return newest


class _Closure(Generic[AnyRecord]):
    """What must stay so that some files can be read; it grows by one file at a time.

    Args:
        records: every file there is.

    Attributes:
        found: digest -> file.
        size: bytes of all of them.
    """

    def __init__(self, records: Collection[AnyRecord]) -> None:
        self.found: dict[str, AnyRecord] = {}
        self.size = 0
        self._by_digest = {record.digest: record for record in records}
        self._newest = current(records)

    def beside(self, *records: AnyRecord) -> dict[str, AnyRecord]:
        """What would have to stay for these, and does not stay yet."""
        more: dict[str, AnyRecord] = {}
        waiting = list(records)
        while waiting:
            record = waiting.pop()
            if record.digest in self.found or record.digest in more:
                continue
            more[record.digest] = record
            waiting.append(self._newest[record.step])
            base = self._by_digest.get(record.base_digest or "")
            if base is not None:
                waiting.append(base)
        return more

    def add(self, more: Mapping[str, AnyRecord]) -> None:
        """Takes in what `beside` gave."""
        self.found |= more
        self.size += sum(record.size for record in more.values())


def needed(keep: Iterable[AnyRecord], records: Collection[AnyRecord]) -> dict[str, AnyRecord]:
    """Digest -> every file that must stay so that those of ``keep`` can be read."""
    return _Closure(records).beside(*keep)


def kept(
    records: Collection[AnyRecord],
    policy: Policy,
    pins: Collection[int],
    doubted: Container[str] = (),
) -> list[AnyRecord]:
    """The checkpoints that stay for their own sake: the newest, the pinned, and what the policy wants.

    Linear in the number of files but for sorting them, since it is asked after every save.

    Args:
        records: of the files that could be read.
        policy: what the user wants kept.
        pins: steps that stay.
        doubted: digests of files that could not be read, whose index is sound alone (`doubts`): they count as
            older than any other, so that they do not stay in the place of one that loads.

    Returns:
        The newest first, those that are doubted last.
    """
    sound = [record for record in records if record.digest not in doubted]
    newest, every = current(sound), current(records)
    doubtful = [record for step, record in every.items() if step not in newest]
    ranked = sorted(newest.values(), key=lambda r: r.order, reverse=True)
    ranked += sorted(doubtful, key=lambda r: r.order, reverse=True)
    keep = {r.digest: r for i, r in enumerate(ranked) if i == 0 or r.step in pins}
    stay = _Closure(records)
    if policy.keep_within is not None:
        stay.add(stay.beside(*keep.values()))
    for record in policy.wants(ranked, doubted):
        if policy.keep_within is not None:
            more = stay.beside(record)
            if stay.size + sum(r.size for r in more.values()) > policy.keep_within:
                break
            stay.add(more)
        keep.setdefault(record.digest, record)
    return [record for record in ranked if record.digest in keep]


def retired(
    records: Collection[AnyRecord],
    policy: Policy,
    pins: Collection[int],
    unread: Collection[tuple[int, int]] | None = None,
    also: Iterable[AnyRecord] = (),
    doubted: Container[str] = (),
) -> list[AnyRecord]:
    """The files that may be removed, descendants before their bases (a crash in between leaves no orphan).

    The newest checkpoint and the pinned ones always stay, whatever the budget.  What a file builds on that
    cannot be read is not known, nor what lies below it under a file that stays: what is older stays, too.

    Args:
        records: of the files that could be read.
        policy: what the user wants kept.
        pins: steps that stay.
        unread: (step, commit sequence) of each file that cannot be read now and may be whole, none where all
            that cannot be read are damaged; None: every file could be read.
        also: files that stay, with their chains, whatever the policy.
        doubted: see `kept`.
    """
    if policy == Policy() and len({record.step for record in records}) == len(records):
        return []  # nothing was ever replaced, and there may be thousands
    stay = needed([*kept(records, policy, pins, doubted), *also], records)
    if unread is not None:
        known, steps = {record.digest for record in records}, {step for step, _ in unread}
        torn = [r.order[0] for r in stay.values() if r.base_digest and r.base_digest not in known]
        limit = max([*torn, *(sequence for _, sequence in unread)], default=0)
        unsure = [r for r in records if r.order[0] < limit or r.step in steps]
        stay |= needed(unsure, records)
    return sorted((r for r in records if r.digest not in stay), key=lambda r: r.order, reverse=True)


def total(keep: Iterable[AnyRecord], records: Collection[AnyRecord]) -> int:
    """Bytes on disk if exactly ``keep`` and what it needs stays."""
    return sum(record.size for record in needed(keep, records).values())
