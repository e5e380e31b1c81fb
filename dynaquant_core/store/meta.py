"""What a checkpoint file says about itself: step, commit sequence, base, and how each part was written.

`format.meta` has checked the fields that every reader needs; what only a store needs is checked here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from dynaquant_core.errors import CorruptFileError

__all__ = ["LIMIT", "PARTS", "BaseLink", "Meta", "PartMeta"]

#: Parts of a checkpoint, in the order in which they are stored.
PARTS = ("weights", "moments", "exact")

#: No step, sequence or revision reaches this.
LIMIT = 1 << 63


@dataclass(frozen=True, slots=True)
class BaseLink:
    """The checkpoint a delta was written against; ``digest`` is its identity, the rest is for messages."""

    step: int
    sequence: int
    digest: str


@dataclass(frozen=True, slots=True)
class PartMeta:
    """How one part was written: a method's name, its options, and the configuration point.

    Args:
        method, options: what a reader needs, and what a delta shares with its base.
        config: the point.
        super_step: how many links the store made one of (`Merging`); for whoever goes on with the run.
    """

    method: str
    options: dict[str, Any]
    config: dict[str, Any]
    super_step: int = 0

    def spec(self) -> dict[str, Any]:
        """What `resolve_method` takes to build the method that reads the part."""
        return {**self.options, "name": self.method}

    def as_dict(self) -> dict[str, Any]:
        """One member of the meta's ``parts``."""
        merging = {"super_step": self.super_step} if self.super_step else {}
        return {"method": self.method, "options": self.options, "config": self.config, **merging}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any], where: str) -> PartMeta:
        """Reads what `as_dict` wrote.

        Raises:
            CorruptFileError: the links of a super step are no whole number.
        """
        links = data.get("super_step", 0)
        if type(links) is not int or not 0 <= links < LIMIT:
            raise CorruptFileError(
                f"{where}: 'super_step' must be a whole number below 2^63, found {links!r:.80}."
            )
        return cls(data["method"], data["options"], data["config"], links)


@dataclass(frozen=True, slots=True)
class Meta:
    """One checkpoint's own description.

    Args:
        step: completed optimizer steps.
        sequence: position in the store's order of commits.
        revision: 0 as saved; counts up each time `compact` writes the same checkpoint anew.
        base: None for a key checkpoint.
        parts: part -> how it was written; a part without tensors is absent.
        report: what the search recorded (quality, degradation, met, ..., seconds, search_state).
        links: how many links of a chain the weights' streams stand for; above 1 it is a super step.
        unused: the run's own way to write weights, where none is written so: the method took no tensor, or
            could not write them anew.
    """

    step: int
    sequence: int
    revision: int
    base: BaseLink | None
    parts: Mapping[str, PartMeta]
    report: Mapping[str, Any] = field(default_factory=dict)
    links: int = 1
    unused: PartMeta | None = None

    @property
    def weights(self) -> PartMeta | None:
        """How a run that goes on from here writes weights; None where the file does not say."""
        return self.unused or self.parts.get("weights")

    @property
    def kind(self) -> str:
        """Either "key" or "delta"."""
        return "delta" if self.base else "key"

    @property
    def order(self) -> tuple[int, int]:
        """(sequence, revision): the larger is newer."""
        return self.sequence, self.revision

    def as_dict(self) -> dict[str, Any]:
        """The ``meta`` object of the file's index (docs/FORMAT.md)."""
        base = self.base
        return {
            "step": self.step,
            "sequence": self.sequence,
            "revision": self.revision,
            **({"links": self.links} if self.links > 1 else {}),
            "kind": self.kind,
            "base": base and {"step": base.step, "sequence": base.sequence, "digest": base.digest},
            "parts": {name: part.as_dict() for name, part in self.parts.items()},
            **({"unused": self.unused.as_dict()} if self.unused else {}),
            "report": dict(self.report),
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any], where: str) -> Meta:
        """Reads the ``meta`` of an index; ``where`` names the file in errors.

        Raises:
            CorruptFileError: a number is out of range or a part is unknown.

        Example:
            >>> meta = Meta(step=20, sequence=3, revision=0, base=None, parts={})
            >>> Meta.from_dict(meta.as_dict(), "a.dq") == meta
            True
        """
        numbers = {key: data.get(key, 0) for key in ("step", "sequence", "revision")}
        numbers["links"] = data.get("links", 1)
        for key, value in numbers.items():
            if type(value) is not int or not 0 <= value < LIMIT:
                raise CorruptFileError(
                    f"{where}: {key!r} must be a whole number below 2^63, found {value!r:.80}."
                )
        unknown = sorted(set(data["parts"]) - set(PARTS))
        if unknown:
            raise CorruptFileError(f"{where}: the parts {unknown!r:.80} are not among {', '.join(PARTS)}.")
        base, unused = data["base"], data.get("unused")
        return cls(
            **numbers,
            base=BaseLink(base["step"], base["sequence"], base["digest"]) if base else None,
            parts={name: PartMeta.from_dict(part, where) for name, part in data["parts"].items()},
            report=data.get("report") or {},
            unused=PartMeta.from_dict(unused, where) if unused else None,
        )
