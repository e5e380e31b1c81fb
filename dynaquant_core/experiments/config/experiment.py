"""A whole experiment, and the errors of a bad one in the words of its YAML file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, PlainValidator, ValidationError, model_validator
from pydantic_core import ErrorDetails

from dynaquant_core.errors import ConfigError
from dynaquant_core.experiments.config.ablation import WHOLE, AblationKeys
from dynaquant_core.experiments.config.pairs import TAGS, require_metric, require_pair
from dynaquant_core.experiments.config.parts import (
    DataSection,
    Evaluation,
    ModelSection,
    OptimizerSection,
)
from dynaquant_core.experiments.config.rework import BucketsSection, ReworkSection, problem_of
from dynaquant_core.experiments.config.section import Count, Seed, Threshold, Whole, plain, require_parts
from dynaquant_core.experiments.config.systems import OF_SAVING, SYSTEMS, SystemSection, system_problem
from dynaquant_core.experiments.config.transfer import Pretrained, saving_problem
from dynaquant_core.experiments.failures import failure_steps
from dynaquant_core.store.disk import path_from

__all__ = ["Experiment", "validate"]

#: Dotted key -> the values it takes; every combination is a run.
Crossing = dict[str, list[Any]]


def _whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _failures(value: Any) -> Any:
    if _whole(value):
        return value
    if isinstance(value, Mapping) and list(value) == ["at"]:
        at = value["at"]
        if isinstance(at, (list, tuple)) and all(map(_whole, at)):
            return {"at": list(at)}
    raise ValueError(f"expected a number of failures or {{at: [steps]}}, got {value!r}")


def _method(value: Any) -> Any:
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, Mapping) and isinstance(value.get("name"), str):
        return dict(plain(value))
    raise ValueError(f"expected a method's name or a mapping with its name and options, got {value!r}")


def _grid(value: Any) -> Any:
    if value is None:
        return {}
    if isinstance(value, list) and value:
        return [_crossing(part) for part in value]
    return _crossing(value)


def _crossing(value: Any) -> Crossing:
    if not isinstance(value, Mapping):
        raise ValueError(f"expected a mapping from dotted keys to lists of values, got {value!r}")
    for key, values in value.items():
        if not isinstance(key, str) or not isinstance(values, list) or not values:
            raise ValueError(f"{key!r} needs a list of values, got {values!r}")
        require_parts(key)
        if key.partition(".")[0] in WHOLE:
            raise ValueError(f"{key!r} belongs to the whole experiment and cannot be varied")
    return dict(plain(value))


def _path(value: str) -> str:
    path_from("a path", value)
    try:
        return str(Path(value).expanduser()) if value.startswith("~") else value
    except RuntimeError:
        raise ValueError(f"{value!r} names a home folder that there is none of") from None


class Experiment(AblationKeys):
    """One YAML file: what to train, how to save it, when to kill it.

    Args:
        name: of the experiment, and of its output folder.
        kind: ``train``: each run trains, and saves meanwhile; ``replay``: a run's exact states are recorded
            once, and each run saves those; ``transfer``: a pre-trained model is compressed once, and each run
            is fine-tuned from that; ``ablate``: trainings or replays along one axis; ``rework``: one run
            fails many times, and its way back is counted; ``system``: each run trains under a system that
            shrinks what training moves or holds, and stores nothing.
        axis, of, measure, time_limit, fix, search: see `config.ablation`.
        model, data, optimizer: see `config.parts`.
        steps: optimizer steps.
        checkpoint_every: steps between checkpoints; of a system, between measurements.
        threshold: relative degradation of the search metric that a checkpoint may cost, a share in (0, 1).
        method: name or mapping of the compression method; None: the project's default.
        moments: ``8bit``, ``exact``, ``compact``, ``minimal``, ``sparse``, ``second`` or ``none``.
        exact: name patterns of tensors kept bit for bit.
        max_chain: most delta checkpoints in a row; 0: keys only.
        seed, seeds: one run each (give one of the two).
        failures: how often the process is killed, or ``{at: [steps]}``.
        restores: ``kill``: a failure is a SIGKILL, and a new process restores; ``swap``: the same process
            throws its state away and restores, which gives the same run bit for bit and is faster.
        as_restored: replay only: each checkpoint is one of a run that was restored from the one before.
        rework, buckets: rework only, one of the two; see `config.rework`.
        evaluate: metric and batch of the evaluation.
        system: system only; see `config.systems`.
        pretrained: the model to start from, see `config.transfer`: of a transfer, or of a system.
        grid: dotted key -> values; every combination is run.  Or a list of such mappings, one after another;
            None: one run a seed.
        output: results folder, by default ``runs/<name>``.
    """

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][\w.-]*$")]
    kind: Literal["train", "replay", "transfer", "ablate", "rework", "system"] = "train"
    model: ModelSection
    data: DataSection
    optimizer: OptimizerSection = OptimizerSection()
    steps: Count
    checkpoint_every: Count
    threshold: Threshold = 0.01
    method: Annotated[Any, PlainValidator(_method)] = None
    moments: str = "8bit"
    exact: list[str] = Field(default_factory=list)
    max_chain: Whole = 8
    seed: Seed = 0
    seeds: Annotated[list[Seed], Field(min_length=1)] | None = None
    failures: Annotated[Any, PlainValidator(_failures)] = 0
    restores: Literal["kill", "swap"] = "kill"
    as_restored: bool = False
    rework: ReworkSection | None = None
    buckets: BucketsSection | None = None
    system: SystemSection | None = None
    evaluate: Evaluation = Evaluation()
    pretrained: Pretrained | None = None
    grid: Annotated[Crossing | list[Crossing], PlainValidator(_grid)] = Field(default_factory=dict)
    output: Annotated[str, AfterValidator(_path)] | None = None

    @model_validator(mode="after")
    def _consistent(self) -> Experiment:
        require_pair(self.model, self.data)
        require_metric(self.evaluate, self.data)
        if self.checkpoint_every > self.steps:
            raise ValueError(f"checkpoint_every ({self.checkpoint_every}) is over steps ({self.steps})")
        if self.seeds is not None and "seed" in self.model_fields_set:
            raise ValueError("give seed or seeds, not both")
        failures = failure_steps(self.failures, self.steps, self.checkpoint_every)
        if failures and self.replays:
            raise ValueError(
                f"a replay trains nothing that could fail, so failures must be 0, not {self.failures!r}; "
                f"use kind: train"
            )
        if self.restores != "kill" and (self.replays or self.kind == "transfer"):
            raise ValueError(
                f"restores: {self.restores} says what becomes of a failure, and kind: {self.kind} has none; "
                f"leave it out"
            )
        if self.as_restored and not self.replays:
            raise ValueError("as_restored belongs to kind: replay; a run that trains is restored by failures")
        own, metric = (self.rework, self.buckets), self.evaluate.metric
        usual = {key: getattr(self, key) == _default(key) for key in OF_SAVING}
        problem = problem_of(self.kind, self.steps, own, failures=self.failures, metric=metric, saving=usual)
        problem = problem or system_problem(self.kind, self.system, self.steps, usual, varies=bool(self.grid))
        problem = problem or saving_problem(self.kind, usual)
        if problem is not None:
            raise ValueError(problem)
        self._consistent_transfer(bool(failures))
        return self

    def _consistent_transfer(self, fails: bool) -> None:
        if self.kind != "transfer":
            if self.pretrained is not None and self.kind != "system":
                raise ValueError("pretrained belongs to kind: transfer, or to kind: system")
            if self.pretrained is not None and not self.pretrained.weights_alone:
                raise ValueError(
                    "kind: system starts from a file of weights: of pretrained give source alone"
                )
            return
        if self.pretrained is None:
            raise ValueError("kind: transfer needs pretrained: the model to start from")
        if fails:
            raise ValueError(
                f"a transfer saves its one checkpoint before it trains, so failures must be 0, not "
                f"{self.failures!r}; use kind: train"
            )
        judged = self.pretrained.data or self.data
        require_pair(self.model, judged)
        require_metric(self.pretrained.evaluate or self.evaluate, judged)

    def as_dict(self) -> dict[str, Any]:
        """JSON-ready data of every key, defaults included; `validate` takes it back."""
        data: dict[str, Any] = self.model_dump(mode="json")
        if self.seeds is not None:
            del data["seed"]  # one of the two, as in the file
        return data


def _default(key: str) -> Any:
    return Experiment.model_fields[key].get_default(call_default_factory=True)


def validate(data: Any, where: str) -> Experiment:
    """Turns plain data into an `Experiment`.

    Args:
        data: what the YAML file holds.
        where: the file, for the message.

    Raises:
        ConfigError: the first thing that is wrong, with its dotted key and the nearest name.

    Example:
        >>> try:
        ...     validate({"name": "x", "stesp": 3}, "x.yaml")
        ... except ConfigError as error:
        ...     print(error)
        x.yaml: unknown key 'stesp'; did you mean 'steps'?
    """
    try:
        return Experiment.model_validate(data)
    except ValidationError as error:
        raise ConfigError(f"{where}: {_message(error)}") from None


def _message(error: ValidationError) -> str:
    first = error.errors(include_url=False)[0]
    place = [str(part) for part in first["loc"] if not str(part).startswith(("list[", "constrained"))]
    if len(place) > 1 and place[0] in {"model", "data", "system"} and place[1] in TAGS | SYSTEMS:
        del place[1]  # pydantic names the chosen class too
    if place and place[-1] == "int":
        del place[-1]  # and the branch of a union
    return f"{'.'.join(place)}: {_reason(first)}" if place else _reason(first)


def _reason(first: ErrorDetails) -> str:
    """Pydantic's reason in the words of a YAML file."""
    match first["type"]:
        case "value_error":
            return first["msg"].removeprefix("Value error, ")
        case "missing":
            return "this key is required"
        case "union_tag_invalid":
            return f"there is no {first['ctx']['tag']!r}; known: {first['ctx']['expected_tags']}"
        case "union_tag_not_found" | "model_attributes_type" | "dict_type" | "model_type":
            return f"expected a mapping with a name, got {first['input']!r}"
    text = first["msg"].replace("Input should be", "expected")
    return f"{text[:1].lower()}{text[1:]}, got {first['input']!r}"
