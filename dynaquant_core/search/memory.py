"""What a search remembers from one checkpoint to the next.

It travels with the checkpoint, so that a resumed run goes on in steady state instead of searching the whole
cube again.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from dynaquant_core.errors import ConfigError

__all__ = ["SearchState"]

#: What stays in the process: another one may have another evaluate.
STAYS = frozenset({"asked", "naught", "sees"})


@dataclass(frozen=True, slots=True)
class SearchState:
    """Where the search stands; JSON there and back.

    Args:
        best: axis values of the last best configuration inside the space; None before the first.
        beyond: index into `Space.beyond` of the last choice; None while the space meets the goal.
        checkpoints: searches made so far.
        exhaustive: exhaustive searches among them.
        since_exhaustive: checkpoints since the last exhaustive search.
        since_probe: checkpoints since something bolder was tried last.
        eager: try something bolder at the next checkpoint, whatever ``since_probe`` says.
        rises: learnt doublings of degradation a bold step, by axis; empty before the first search.
        gaps: learnt doublings of each variant against the first.
        asked: whether it was measured what a model gets that knows nothing; it does not travel.
        naught: what it gets (`search.learnt`); None: not known; it does not travel.
        sees: whether evaluate depends on what is stored, as far as that was asked; it does not travel.

    Raises:
        ConfigError: a value is of the wrong type.

    Example:
        >>> state = SearchState(best={"bins": 16}, checkpoints=3)
        >>> SearchState.from_dict(state.as_dict()) == state
        True
    """

    best: Mapping[str, Any] | None = None
    beyond: int | None = None
    checkpoints: int = 0
    exhaustive: int = 0
    since_exhaustive: int = 0
    since_probe: int = 0
    eager: bool = False
    rises: tuple[float, ...] = ()
    gaps: tuple[float, ...] = ()
    asked: bool = field(default=False, compare=False)
    naught: float | None = field(default=None, compare=False)
    sees: bool | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        counts = (self.checkpoints, self.exhaustive, self.since_exhaustive, self.since_probe)
        good = all(_is_count(count) for count in counts) and isinstance(self.eager, bool)
        good = good and (self.best is None or isinstance(self.best, Mapping))
        good = good and (self.beyond is None or _is_count(self.beyond))
        good = good and all(_is_finite(number) for number in (*self.rises, *self.gaps))
        good = good and isinstance(self.asked, bool) and (self.naught is None or _is_finite(self.naught))
        if not good:
            raise ConfigError(
                f"search state: expected counts, finite numbers and axis values, got {asdict(self)!r:.200}; "
                "start a new search with SearchState()."
            )

    def as_dict(self) -> dict[str, Any]:
        """The state as JSON-ready data; ``SearchState.from_dict`` takes it back."""
        data = {name: value for name, value in asdict(self).items() if name not in STAYS}
        return {**data, "rises": list(self.rises), "gaps": list(self.gaps)}

    @classmethod
    def from_dict(cls, data: object) -> SearchState:
        """Rebuilds a state from `as_dict`, possibly through JSON.

        Raises:
            ConfigError: ``data`` is not what `as_dict` writes.
        """
        names = {field.name for field in fields(cls)} - STAYS
        if not isinstance(data, Mapping) or not names.issuperset(data):
            raise ConfigError(
                f"search state: expected a mapping with keys of {sorted(names)}, got {data!r:.200}; "
                "start a new search with SearchState()."
            )
        known = dict(data)
        for name in ("rises", "gaps"):
            numbers = known.get(name, ())
            if not isinstance(numbers, (list, tuple)):
                raise ConfigError(f"search state: {name} must be a list of numbers, got {numbers!r:.80}.")
            known[name] = tuple(numbers)
        return cls(**known)


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _is_finite(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
