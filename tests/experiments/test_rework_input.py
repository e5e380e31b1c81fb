"""Bad input of kind rework, and what is drawn before anything is trained."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from dynaquant_core.errors import ConfigError, DynaQuantError
from dynaquant_core.experiments import run_experiment, shipped_configs
from dynaquant_core.experiments.config import load_experiment, validate
from dynaquant_core.experiments.config.grid import expand
from dynaquant_core.experiments.rework.point import point_of
from dynaquant_core.experiments.rework.run import failed_at
from tests.experiments.rework_kit import STEPS, settings

MODELS = ("mlr", "lenet5", "alexnet", "factorisation")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rework": {"size": 0.05, "repeats": 0}}, r"rework.repeats: expected greater than or equal to 1"),
        ({"rework": {"size": 0.05, "between": [4, 99]}}, r"\[4, 99\] is not a range within the run.*\(16\)"),
        ({"rework": {"size": 0.05, "between": [9, 4]}}, r"\[9, 4\] is not a range within the run"),
        ({"rework": {"size": 0.05, "between": [4]}}, r"rework.between: list should have at least 2 items"),
        ({"rework": {"size": 1.5}}, r"rework.size: expected less than or equal to 1"),
        ({"rework": {"sizes": 0.05}}, r"rework: unknown key 'sizes'; did you mean 'size'\?"),
        ({"rework": {"repeats": 5}}, r"rework: give size, or the method's point"),
        ({"rework": {"size": 0.05, "point": {"bits": 2}}}, r"rework: give size, or the method's point"),
        ({"rework": None}, r"kind: rework needs one of the sections rework and buckets"),
        ({"buckets": {"after": [1]}}, r"kind: rework needs one of the sections"),
        (
            {"rework": None, "buckets": {"after": [8], "every": 2, "count": 6}},
            r"iteration 20 is outside the run",
        ),
        ({"failures": {"at": [3]}}, r"draws its failures itself, so failures must be 0"),
        ({"kind": "train"}, r"rework belongs to kind: rework, not train"),
        ({"kind": "replay"}, r"rework belongs to kind: rework, not replay"),
        ({"evaluate": {"metric": "accuracy"}}, r"data 'ratings' has the metric loss, not 'accuracy'"),
        ({"threshold": 0.05}, r"stores at a given size: threshold would change nothing"),
        ({"fix": {"bins": 8}, "max_chain": 2}, r"max_chain and fix would change nothing; leave it out"),
        ({"as_restored": True}, r"as_restored belongs to kind: replay"),
    ],
)
def test_a_bad_section_is_one_line(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        validate(settings(**changes), "tiny")


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("method={name: lc, bits: 3}", r"method 'lc' does not take the options \['bits'\]"),
        ("method={name: lc, stages: HP}", r"stages"),
        ("method=scarr", r"no method 'scarr'; did you mean 'scar'"),
        ("method=lattice", r"'lattice' has no point of size 0.05; give rework.point"),
        ("rework.size=0.2", r"'lc' has no point of size 0.2; sizes 0.05, 0.1 have one"),
        ("rework={point: {bits: 9}}", r"bits must be a whole number from 2 to 8"),
        ("rework={point: {share: 0.1}}", r"share"),
    ],
)
def test_a_method_that_has_no_such_point_is_refused_before_anything_is_written(
    workplace: Path, override: str, message: str
) -> None:
    path = workplace / "tiny.yaml"
    path.write_text(yaml.safe_dump(settings(method="lc")), encoding="utf-8")
    with pytest.raises(DynaQuantError, match=message):
        run_experiment(path, [override, "output=out"])
    assert not Path("out").exists()


def test_failures_are_drawn_once_for_all_methods_and_spread_over_their_range() -> None:
    (one, other) = (
        expand(validate(settings(method=method, rework={"size": 0.05, "repeats": 300}), "x"))[0]
        for method in ("lc", "scar")
    )
    assert one.rework is not None
    assert other.rework is not None
    drawn = failed_at(one, one.rework)
    assert drawn == failed_at(other, other.rework)
    assert set(drawn) == set(range(1, STEPS + 1))
    another = expand(validate(settings(seed=1, rework={"size": 0.05, "repeats": 300}), "x"))[0]
    assert another.rework is not None
    assert failed_at(another, another.rework) != drawn


def test_the_shipped_configs_are_what_they_say() -> None:
    assert {f"lc/{name}" for name in MODELS} <= shipped_configs().keys()
    for name in MODELS:
        runs = expand(load_experiment(f"lc/{name}"))
        own = [run for run in runs if run.rework is not None and run.rework.flat]
        for method in ("lc", "scar", "topn"):
            sizes = [run.rework.size for run in own if run.method == method and run.rework is not None]
            assert sizes == [0.05, 0.1]
        assert {run.rework.repeats for run in runs if run.rework is not None} == {50}
        assert {run.checkpoint_every for run in runs} == {1}
        assert all(point_of(run) for run in runs)


def test_the_overhead_case_is_a_failure_at_iteration_7_between_full_checkpoints() -> None:
    runs = expand(load_experiment("lc/overhead"))
    assert {(run.method, run.checkpoint_every, run.rework.between[0]) for run in runs} == {  # type: ignore[union-attr, index]
        ("lc", 1, 7),
        ("none", 10, 7),
    }
    assert len(expand(load_experiment("lc/stages"))) == 24
    (first, *_) = expand(load_experiment("lc/buckets"))
    assert first.buckets is not None
    assert (first.buckets.every, first.buckets.count) == (10, 6)
