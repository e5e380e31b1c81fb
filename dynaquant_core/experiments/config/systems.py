"""The section of ``kind: system``: what shrinks a training while it runs (rooms `comm` and `memory`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, PlainValidator, model_validator

from dynaquant_core.experiments.config.section import Positive, Section, Share, Whole, as_number, plain

__all__ = [
    "OF_SAVING",
    "SYSTEMS",
    "PrunedSystem",
    "SamoSystem",
    "SmaqSystem",
    "SystemSection",
    "TwoBitSystem",
    "system_problem",
]

#: Names of systems, which pydantic puts into an error's place.
SYSTEMS = frozenset({"smaq", "samo", "pruned", "two_bit"})

#: What a run that stores nothing cannot be told.
OF_SAVING = ("threshold", "method", "moments", "exact", "max_chain", "failures", "restores", "fix", "search")


def _format(value: Any) -> Any:
    if isinstance(value, str):
        return value
    if isinstance(value, Mapping) and isinstance(value.get("name"), str):
        return dict(plain(value))
    raise ValueError(f"expected a format's name or a mapping with its name and options, got {value!r}")


class SmaqSystem(Section):
    """``system: {name: smaq}``: `memory.smaq.apply`, whose keywords these are.

    Args:
        format: ``smaq``, ``bf16``, ``fp16``, ``fp8_e5m2``, ``fp8_e4m3``, ``s2fp8``, or a mapping of a name
            and settings.
        feature_maps: ``saved``: packed where autograd keeps them; ``inline``: the next layer sees the decoded
            map, as published; null: as they are.
        gradient_maps, gradients, weights, optimizer_state: whether they are coded.
        reuse: steps for which a tensor's statistics are used again.
    """

    name: Literal["smaq"]
    format: Annotated[Any, PlainValidator(_format)] = "smaq"
    feature_maps: Literal["saved", "inline"] | None = "saved"
    gradient_maps: bool = True
    gradients: bool = True
    weights: bool = True
    optimizer_state: bool = True
    reuse: Whole = 0


class Pruning(Section):
    """What is pruned, and when: by magnitude, after so many steps of the plain training."""

    sparsity: Share = 0.9
    after: Whole = 0
    scope: Literal["layer", "global"] = "layer"
    embeddings: bool = False
    dense: list[str] = Field(default_factory=list)


class SamoSystem(Pruning):
    """``system: {name: samo}``: `memory.samo.wrap`, whose keywords these are.

    Args:
        sparsity: share that is pruned.
        after: steps of plain training before.
        scope, embeddings, dense: see `memory.samo.wrap`.
        dtype: of the model from then on.
        loss_scale: of float16, where small gradients would be lost without; steps that overflow under it are
            left out and counted.
    """

    name: Literal["samo"]
    dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    loss_scale: Annotated[float, Field(ge=2.0**-64, le=2.0**64), BeforeValidator(as_number)] | None = None

    @model_validator(mode="after")
    def _float16_is_scaled(self) -> SamoSystem:
        if self.dtype == "float16" and self.loss_scale is None:
            raise ValueError("dtype: float16 needs a loss_scale, such as 1024")
        if self.dtype != "float16" and self.loss_scale is not None:
            raise ValueError(f"loss_scale belongs to dtype: float16, not {self.dtype}; leave it out")
        return self


class PrunedSystem(Pruning):
    """``system: {name: pruned}``: the same masks in a dense training, which SAMO is measured against."""

    name: Literal["pruned"]


class TwoBitSystem(Section):
    """``system: {name: two_bit}``: replicas in one process whose gradients are reduced in two bits.

    Each replica draws batches of its own, so a step sees ``replicas`` times ``data.batch`` items.

    Args:
        threshold: t of the codes, or name pattern -> t; null: dense.
        negative_threshold: size of what is sent below zero; null: as ``threshold``.
        warmup: first steps that are reduced densely.
        replicas: how many.
    """

    name: Literal["two_bit"]
    threshold: Positive | dict[str, Positive] | None = 0.5
    negative_threshold: Positive | None = None
    warmup: Whole = 0
    replicas: Annotated[int, Field(ge=2, le=64)] = 2

    @model_validator(mode="after")
    def _dense_has_no_settings(self) -> TwoBitSystem:
        if self.threshold is None and (self.negative_threshold is not None or self.warmup):
            raise ValueError("threshold: null is dense throughout; leave out negative_threshold and warmup")
        return self

    @property
    def dense(self) -> TwoBitSystem:
        """As many replicas without codes: they see the same items, so two bits are measured against them."""
        return TwoBitSystem(name="two_bit", threshold=None, replicas=self.replicas)


SystemSection = Annotated[SmaqSystem | SamoSystem | PrunedSystem | TwoBitSystem, Field(discriminator="name")]


def system_problem(
    kind: str, system: Section | None, steps: int, saving: Mapping[str, bool], *, varies: bool
) -> str | None:
    """What is wrong with the section in an experiment; None: nothing.

    Args:
        kind: of the experiment.
        system: its section.
        steps: of it.
        saving: for each key of `OF_SAVING` whether it is as usual.
        varies: whether there is a grid, whose runs have their own.

    Returns:
        One sentence, in the words of the YAML file.
    """
    if kind != "system":
        return None if system is None else f"system belongs to kind: system, not {kind}"
    if system is None:
        return None if varies else "kind: system needs the section system, as system: {name: smaq}"
    unusual = [key for key in OF_SAVING if not saving[key]]
    if unusual:
        return (
            f"kind: system stores no checkpoints: {' and '.join(unusual)} would change nothing; leave it out"
        )
    if isinstance(system, Pruning) and not varies and system.after >= steps:
        return f"system.after: the run of {steps} steps is over before it is pruned after {system.after}"
    return None
