"""What ``kind: ablate`` adds to an experiment: the one thing that varies, and what is measured of it.

And two keys for every kind, because most ablations of a search need them: ``fix`` and ``search``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field, PlainValidator, model_validator

from dynaquant_core.experiments.config.section import Plain, Positive, Section, plain, require_parts

__all__ = ["WHOLE", "AblationKeys", "Axis"]

#: What `measure: bins` may take for one checkpoint, unless more or less is given.
SECONDS = 1800.0
#: What `measure: bins` has no use for, as usual: there is no base, and every point is tried.
NOT_OF_BINS: Mapping[str, Any] = {"fix": {}, "search": True, "as_restored": False, "max_chain": 8}
#: Keys that belong to the whole experiment, whose runs cannot differ in them.
WHOLE = frozenset({"name", "output", "grid", "kind", "seeds", "axis", "of", "measure"})


class Axis(Section):
    """``axis: {key: method.sigma, values: [0.1, 0.2]}``: what varies, a dotted key as in ``grid``.

    Args:
        key: dotted; neither a seed, over which figures are averaged, nor a key of the whole experiment.
        values: one run each; each once.
    """

    key: Annotated[str, Field(min_length=1)]
    values: Annotated[list[Plain], Field(min_length=1)]

    @model_validator(mode="after")
    def _varies_what_a_run_is_made_of(self) -> Axis:
        require_parts(self.key)
        if self.key.partition(".")[0] in WHOLE | {"seed"}:
            raise ValueError(f"{self.key!r} cannot be an axis: figures are compared within one experiment")
        twice = [value for index, value in enumerate(self.values) if value in self.values[:index]]
        if twice:
            raise ValueError(f"value {twice[0]!r} is there twice")
        return self


def _search(value: Any) -> Any:
    if isinstance(value, bool):
        return value
    if isinstance(value, Mapping) and value:
        return dict(plain(value))
    raise ValueError(
        f"expected true, false (the method's usual point) or a mapping that is a point, got {value!r}"
    )


class AblationKeys(Section):
    """The keys of `Experiment` that ablations use.

    Args:
        axis: kind ablate: what varies.
        of: kind ablate: what each run is.
        measure: kind ablate: ``saves``: checkpoints as in a run of that kind; ``coders``: the same codes
            under every coder; ``bins``: the fewest bins that keep the threshold.
        time_limit: seconds that ``measure: bins`` may take for one checkpoint.
        fix: search axis -> value: the search leaves them there.
        search: false: every checkpoint is stored at the method's usual point, or a mapping: at this point,
            whatever it costs; true: searched.
    """

    axis: Axis | None = None
    of: Literal["replay", "train"] = "replay"
    measure: Literal["saves", "coders", "bins"] = "saves"
    time_limit: Positive = SECONDS
    fix: dict[str, Plain] = Field(default_factory=dict)
    search: Annotated[Any, PlainValidator(_search)] = True

    @model_validator(mode="after")
    def _belongs_together(self) -> AblationKeys:
        ablates = getattr(self, "kind", None) == "ablate"
        usual = {"axis": None, "of": "replay", "measure": "saves", "time_limit": SECONDS}
        for key, value in usual.items():
            if not ablates and getattr(self, key) != value:
                raise ValueError(f"{key} belongs to kind: ablate")
        if ablates and self.axis is None and self.measure == "saves":
            raise ValueError("kind: ablate needs an axis, as axis: {key: method.sigma, values: [0.1, 0.2]}")
        if self.measure != "saves" and self.of == "train":
            raise ValueError(f"measure: {self.measure} looks at a recording; it needs of: replay")
        varies = self.axis is not None and self.axis.key == "time_limit"
        if self.measure != "bins" and (varies or self.time_limit != SECONDS):
            raise ValueError("time_limit belongs to measure: bins")
        idle = [key for key, value in NOT_OF_BINS.items() if getattr(self, key, value) != value]
        if self.measure == "bins" and idle:
            raise ValueError(
                f"measure: bins drafts each checkpoint on its own at points of its own, so "
                f"{' and '.join(idle)} would change nothing; leave it out"
            )
        if isinstance(self.search, dict) and self.fix:
            raise ValueError("give search a point, or fix a part of it, not both")
        return self

    @property
    def replays(self) -> bool:
        """Whether a run saves what was recorded, and trains nothing."""
        kind = getattr(self, "kind", None)
        return kind == "replay" or (kind == "ablate" and self.of == "replay")
