"""What is known about one checkpoint without decoding it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

__all__ = ["CheckpointInfo", "Problem"]


@dataclass(frozen=True, slots=True)
class Problem:
    """One checkpoint file that cannot be used.

    Args:
        name: file name.
        step: its step; from the file name where the index cannot be read.
        reason: what is wrong, in one sentence.
    """

    name: str
    step: int
    reason: str

    def __str__(self) -> str:
        return self.reason if self.name in self.reason else f"{self.name}: {self.reason}"

    def as_dict(self) -> dict[str, Any]:
        """JSON-ready data."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class CheckpointInfo:
    """One checkpoint: what it is, what it cost and what it promises.

    Args:
        step: completed optimizer steps.
        sequence: position in the store's order of commits; the highest is the newest.
        kind: "key" (readable on its own) or "delta".
        base_step: step of the checkpoint a delta was written against; None for a key.
        method: name of the method that wrote the weights.
        config: the configuration point they were written with.
        raw_bytes: bytes of all tensors in their own dtypes, tied ones once.
        stored_bytes: size of the file.
        parts: role ("weight", "moment", "exact") -> {"raw_bytes", "stored_bytes"}; the latter sum to the
            file's.
        quality: {"reference", "search"} on the search batches; None where nothing was evaluated.
        degradation: relative, positive = worse; None where nothing was evaluated.
        met: whether the threshold holds; None where nothing was evaluated.
        evaluations: candidates evaluated, the reference not counted.
        seconds: collector, held, search, draft, encode, commit, as far as they are known.
        skipped: what `CheckpointStore.newest` or a load passed over to arrive here.
        exact: names of floating weights of two dimensions and more that are stored bit for bit.
        options: the method's options, as recorded.
        report: everything that was recorded about the search, its state included; and, under "safetensors",
            what the file of that format that it was made of said of itself.
    """

    step: int
    sequence: int
    kind: str
    base_step: int | None
    method: str
    config: Any
    raw_bytes: int
    stored_bytes: int
    parts: Mapping[str, Mapping[str, int]]
    quality: Any = None
    degradation: float | None = None
    met: bool | None = None
    evaluations: int = 0
    seconds: Mapping[str, float] = field(default_factory=dict)
    skipped: tuple[Problem, ...] = ()
    exact: tuple[str, ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict)
    report: Mapping[str, Any] = field(default_factory=dict)

    @property
    def ratio(self) -> float:
        """raw_bytes / stored_bytes."""
        return self.raw_bytes / self.stored_bytes if self.stored_bytes else 0.0

    @property
    def stale(self) -> float | None:
        """Share of the movement since the last restore that this checkpoint does not hold; None: not known.

        Estimated when it was saved; what a restore costs grows with it (docs/restoring.md).
        """
        lost = self.report.get("movement_lost")
        stale = lost.get("stale") if isinstance(lost, Mapping) else None
        return float(stale) if isinstance(stale, (int, float)) and not isinstance(stale, bool) else None

    def as_dict(self) -> dict[str, Any]:
        """JSON-ready data; of the report what is said of it (ratio, stale, how it was searched)."""
        data = {field.name: getattr(self, field.name) for field in fields(self) if field.name != "report"}
        as_dict = getattr(self.config, "as_dict", None)
        data["config"] = as_dict() if as_dict else self.config
        data["skipped"] = [item.as_dict() for item in self.skipped]
        data["exact"] = list(self.exact)
        exhaustive = bool(self.report.get("exhaustive"))
        return data | {"ratio": self.ratio, "stale": self.stale, "exhaustive": exhaustive}
