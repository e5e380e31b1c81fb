"""One save, from the live state to something that no longer needs it.

    begin -> draft (as many as a search wants) -> seal -> write

Up to `Saving.seal` the live tensors are looked at, on the calling thread; what is sealed holds codes and
copies of its own, and may be written by another thread while training goes on.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from dynaquant_core.arithmetic import plainly
from dynaquant_core.errors import ConfigError, SaveError
from dynaquant_core.format import FileWriter, TensorEntry
from dynaquant_core.methods.base import Draft, FitsSpace, Hints, Method, Reference, Space, Stream
from dynaquant_core.methods.moments import least_bytes
from dynaquant_core.state import TensorSpec, Tree
from dynaquant_core.store.info import CheckpointInfo
from dynaquant_core.store.meta import BaseLink, Meta, PartMeta
from dynaquant_core.store.parts import Base, Division, HeldPart, written_by

__all__ = ["Saving", "Sealed"]

#: A delta below this share of the last key's weights is smaller than a new key without asking; so is one
#: whose predecessor was, and it is not even sized.
CLEARLY_SMALLER = 0.5

#: For the estimate of a file: bytes of index a tensor, and what lossless coding leaves of floating values.
INDEX_BYTES = 60
EXACT_SHARE = 0.8


class Saving:
    """A save that has begun.

    Attributes:
        step: completed optimizer steps.
        live: name -> the tree's own tensors that the method will change; writing into them writes into the
            model (a search puts candidates there, and must put the originals back).
        space: the points a search may try.
        base: what a delta would be written against; None where only a key can be.
    """

    def __init__(
        self,
        step: int,
        tree: Tree,
        division: Division,
        hints: Hints,
        base: Base | None,
        write: Callable[[Sealed], CheckpointInfo] | None,
    ) -> None:
        self.step = step
        self.live: Mapping[str, Tensor] = division.tensors.get("weights", {})
        self.space: Space = space_of(division.methods["weights"], self.live, hints)
        self._tree = tree
        self._division = division
        self._hints = hints
        self.base = base
        self._write = write
        self._seconds = 0.0

    def tell_moved(self, moved: Mapping[str, float]) -> None:
        """Tells drafts that are made from now on how far the weights have moved (`Hints.moved`)."""
        self._hints.moved = moved

    @plainly
    def draft(self, config: Any = None) -> Draft:
        """Drafts the weights with ``config`` (None: the method's default).

        A delta against the base where there is one and the delta is smaller than a key; else a key.

        Raises:
            ConfigError: the method cannot use this config.
        """
        started = time.perf_counter()
        try:
            return self._draft(self.space.default if config is None else config)
        finally:
            self._seconds += time.perf_counter() - started

    def _draft(self, config: Any) -> Draft:
        method = self._division.methods["weights"]
        if isinstance(config, Mapping):
            config = method.config(config)
        if not isinstance(config, type(self.space.default)):
            expected = type(self.space.default).__name__
            raise ConfigError(
                f"method {method.name!r} takes a config of type {expected}, got {config!r:.120}; "
                "give it where the save begins, or name its method."
            )
        if not self.live:
            return NothingToDraft(config, is_key=self.base is None)
        if self.base is None:
            return method.draft(self.live, None, config, self._hints)
        delta = method.draft(self.live, self.base.parts["weights"].reference, config, self._hints)
        clearly = CLEARLY_SMALLER * self.base.key_bytes
        if delta.is_key or self.base.newest_bytes <= clearly or delta.size <= clearly:
            return delta
        key = method.draft(self.live, None, config, self._hints)
        return delta if delta.size < key.size + self.base.spared else key

    @plainly
    def seal(self, draft: Draft, report: Mapping[str, Any] | None = None) -> Sealed:
        """Takes all that a reader needs out of the live state; after it the tensors may change.

        Args:
            draft: one of this save's drafts.
            report: the search's record (quality, degradation, met, evaluations, exhaustive, seconds,
                search_state), stored with the checkpoint.
        """
        started = time.perf_counter()
        base = None if draft.is_key else self.base
        drafts: dict[str, Draft] = {}
        for part, tensors in self._division.tensors.items():
            drafts[part] = draft if part == "weights" else self._plain_draft(part, tensors, base)
            drafts[part].detach()
        self._hints.scratch.clear()  # sketches are not needed to write; they would add to the peak
        self._seconds += time.perf_counter() - started
        report = dict(report or {})
        report["seconds"] = {"draft": self._seconds, **(report.get("seconds") or {})}
        methods = self._division.methods
        parts = {part: written_by(methods[part], each.config) for part, each in drafts.items()}
        weights = parts.get("weights") or written_by(methods["weights"], draft.config)
        return Sealed(
            self.step, self._tree.skeleton, self._entries(), drafts, parts, weights, base, report, self._write
        )

    def _plain_draft(self, part: str, tensors: Mapping[str, Tensor], base: Base | None) -> Draft:
        method = self._division.methods[part]
        default = method.space(gradients=False).default
        hints = Hints(roles=self._division.roles)
        reference = base.reference(part, self._division) if base else None
        return method.draft(tensors, reference, default, hints)

    def _entries(self) -> tuple[TensorEntry, ...]:
        part_of, roles = self._division.part_of(), self._division.roles
        specs = [(leaf.name, TensorSpec.of(leaf.tensor)) for leaf in self._tree.leaves]
        return tuple(
            TensorEntry(name, spec.shape, spec.dtype, roles[name], part_of[name]) for name, spec in specs
        )


def space_of(method: Method, live: Mapping[str, Tensor], hints: Hints) -> Space:
    """What may be tried with these tensors."""
    space = method.space(gradients=bool(hints.gradients))
    return method.fitted(space, live, hints) if isinstance(method, FitsSpace) else space


class Sealed:
    """A save that needs nothing of the live state any more; written once.

    Attributes:
        step: completed optimizer steps.
        base: the link that a delta will name; None for a key.
        parts: how each part is written; one without tensors is absent.
        weights: how weights are written, also where the method takes no tensor.
    """

    def __init__(
        self,
        step: int,
        skeleton: Any,
        entries: tuple[TensorEntry, ...],
        drafts: Mapping[str, Draft],
        parts: Mapping[str, PartMeta],
        weights: PartMeta,
        base: Base | None,
        report: dict[str, Any],
        write: Callable[[Sealed], CheckpointInfo] | None,
    ) -> None:
        self.step = step
        self.base = base
        self.report = report
        self.skeleton = skeleton
        self.entries = entries
        self.parts = parts
        self.weights = weights
        self._drafts = drafts
        self._write = write

    @plainly
    def write(self) -> CheckpointInfo:
        """Encodes into one file, commits it, then lets retention remove what may go.

        Raises:
            SaveError: the save was begun without a place to write to.
            StorageError: the system refused; nothing of the store is lost.
        """
        if self._write is None:
            raise SaveError(f"The save of step {self.step} was begun without a place to write to.")
        return self._write(self)

    @property
    def link(self) -> BaseLink | None:
        """The base that the file names."""
        return self.base.link if self.base else None

    def meta(self, sequence: int) -> Meta:
        """What the file says of itself at a place in its store's order of commits."""
        unused = None if "weights" in self.parts else self.weights
        return Meta(self.step, sequence, 0, self.link, self.parts, self.report, unused=unused)

    @property
    def most(self) -> int:
        """Bytes that the file has room in, whatever it comes to: twice what the state takes itself."""
        return 2 * sum(entry.spec.nbytes for entry in self.entries) + (1 << 20)

    def estimate(self) -> int:
        """Bytes that the file will have at least, about: a refusal on its ground must not be wrong.

        Asking a general-purpose coder for its size would encode everything beforehand and hold it, so only
        the weights' draft is asked.
        """
        weights = self._drafts["weights"].size if "weights" in self._drafts else 0
        others = sum(self._rough_bytes(entry) for entry in self.entries if entry.part != "weights")
        return int(weights + others) + INDEX_BYTES * (len(self.entries) + 8)

    def _rough_bytes(self, entry: TensorEntry) -> float:
        method = self.parts[entry.part].method
        if method != "exact":
            return least_bytes(method) * entry.spec.numel
        return 0 if self.base else EXACT_SHARE * entry.spec.nbytes  # what did not change costs nothing

    def encode(self, writer: FileWriter) -> dict[str, HeldPart]:
        """Writes every stream; returns what a reader will hold.

        One stream is in memory at a time.
        """
        held = {}
        for part, draft in self._drafts.items():
            streams, reference = draft.encode()
            for stream in streams:
                writer.add(part, stream.name, stream.kind, stream.codec, stream.payload)
            held[part] = HeldPart(self.parts[part], self._specs(part), reference)
        return held

    def _specs(self, part: str) -> dict[str, TensorSpec]:
        return {entry.name: entry.spec for entry in self.entries if entry.part == part}


@dataclass(slots=True)
class NothingToDraft:
    """The draft of a state without a tensor that the method takes; `Draft` and `Reference` in one."""

    config: Any
    is_key: bool
    size: int = 0

    @property
    def decoded(self) -> Iterator[tuple[str, Tensor]]:
        """No tensor."""
        return self.items()

    def detach(self) -> None:
        """Holds no live tensor anyway."""

    def encode(self) -> tuple[Iterable[Stream], Reference]:
        """No stream; what a reader holds is nothing too."""
        return (), self

    def items(self) -> Iterator[tuple[str, Tensor]]:
        """No tensor."""
        return iter(())

    def state(self) -> dict[str, Tensor]:
        """No tensor."""
        return {}
