"""Which checkpoint of an output folder stands for a step; that of another run never does."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from dynaquant_core.plugins.marker import Marker
from dynaquant_core.plugins.reading import on_marker
from dynaquant_core.store import CheckpointInfo
from dynaquant_core.store.catalogue import Catalogue
from dynaquant_core.store.meta import BaseLink
from dynaquant_core.store.trail import find_link

__all__ = ["Found", "found_in", "standing"]


@dataclass(frozen=True, slots=True)
class Found:
    """One checkpoint's folder.

    Args:
        info: the checkpoint's record.
        folder: with the marker.
        link: as the marker has it.
        digest: identity of the checkpoint's own file.
        held: identities of all files in the folder: what it builds on, too.
    """

    info: CheckpointInfo
    folder: Path
    link: BaseLink
    digest: str
    held: frozenset[str]


def found_in(folder: Path) -> Found:
    """The checkpoint in a folder; raises as `plugins.reading.describe`."""

    def look(marker: Marker) -> Found:
        scan = Catalogue(folder).scan()
        entry = find_link(scan, marker.link, folder)
        held = frozenset(each.digest for each in scan.entries)
        return Found(entry.info, folder, marker.link, entry.digest, held)

    return on_marker(folder, look)


def standing(found: Sequence[Found]) -> dict[int, list[Found]]:
    """Step -> what stands for it, ascending: one checkpoint, or one of each run where several have the step.

    Checkpoints that lie beside each other are of one run; so are two of which one builds on the other, and
    all beside such: a run may have a folder for its best and one for its newest, and be resumed in a third.
    Of one run the checkpoint committed last stands, or that of the folder in which the run went on.  Two runs
    that began at the same checkpoint are two.
    """
    places = _Places(found)
    steps: defaultdict[int, list[Found]] = defaultdict(list)
    for one in found:
        rivals = steps[one.info.step]
        for number, other in enumerate(rivals):
            if places.of_one_run(one, other):
                rivals[number] = places.later(other, one)
                break
        else:
            rivals.append(one)
    return {step: steps[step] for step in sorted(steps)}


class _Places:
    """What checkpoints' folders lie in, and which of these build on checkpoints of which others."""

    def __init__(self, found: Sequence[Found]) -> None:
        self._own: defaultdict[Path, set[str]] = defaultdict(set)
        self._held: defaultdict[Path, set[str]] = defaultdict(set)
        for one in found:
            self._own[one.folder.parent].add(one.digest)
            self._held[one.folder.parent] |= one.held

    def of_one_run(self, one: Found, other: Found) -> bool:
        here, there = one.folder.parent, other.folder.parent
        return (
            here == there
            or one.digest in other.held
            or other.digest in one.held
            or self._goes_on(here, there)
            or self._goes_on(there, here)
        )

    def later(self, known: Found, other: Found) -> Found:
        """Of two of one run the one that stands."""
        here, there = known.folder.parent, other.folder.parent
        if known.digest != other.digest and self._goes_on(here, there) != self._goes_on(there, here):
            return other if self._goes_on(here, there) else known
        return other if other.info.sequence > known.info.sequence else known

    def _goes_on(self, here: Path, there: Path) -> bool:
        """Whether something in ``there`` builds on a checkpoint of ``here``."""
        return here != there and not self._own[here].isdisjoint(self._held[there])
