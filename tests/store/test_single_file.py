"""save_file and load_file: one self-contained file."""

from __future__ import annotations

import os
import signal
from functools import partial
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import dynaquant_core as dq
from dynaquant_core.cli.source import open_source
from dynaquant_core.store import CheckpointStore
from dynaquant_core.store.commit import atomic_file, atomic_path
from dynaquant_core.store.export import to_pt, to_safetensors
from tests.store.kit import checkpoint_files, filled, is_same, small_state


def test_a_file_comes_back_whole(tmp_path: Path) -> None:
    path = tmp_path / "model.dq"
    info = dq.save_file(small_state(1), path, method="exact", moments="exact")
    assert (info.kind, info.stored_bytes) == ("key", path.stat().st_size)
    assert is_same(dq.load_file(path), small_state(1))
    assert [file.name for file in tmp_path.iterdir()] == ["model.dq"]


def test_a_config_is_used_and_exact_names_are_kept(tmp_path: Path) -> None:
    state = small_state(1)
    info = dq.save_file(state, tmp_path / "a.dq", config=dq.Config(bins=4), exact="layer1")
    loaded = dq.load_file(str(tmp_path / "a.dq"))
    assert info.config.bins == 4
    assert torch.equal(loaded["model"]["layer1.weight"], state["model"]["layer1.weight"])
    assert len(loaded["model"]["layer0.weight"].unique()) < 30


def error_of(state: dict[str, dict[str, torch.Tensor]]) -> float:
    """A quality to minimise: 1 for the original, more the further a weight is off."""
    true = small_state(1)["model"]
    names = [name for name in true if name.endswith("weight")]
    return 1.0 + sum(float((state["model"][name] - true[name]).float().norm() ** 2) for name in names) / 1000


@pytest.mark.parametrize("config", [None, dq.Config(bins=16, prune=0.1, protect=0.005)])
@pytest.mark.parametrize("scale", [1e-26, 1e-31, 1e-40])
def test_a_matrix_of_faint_values_is_not_lost_in_noise(tmp_path: Path, config: object, scale: float) -> None:
    weight = scale * torch.randn(100, 100, generator=torch.Generator().manual_seed(0))
    beside = torch.randn(100, 100, generator=torch.Generator().manual_seed(1))
    dq.save_file({"weight": weight, "beside": beside}, tmp_path / "model.dq", config=config)
    error = (dq.load_file(tmp_path / "model.dq")["weight"] - weight).double()
    limit = 0.3 if config is None else 0.25  # a step of `max_step` spreads leaves 0.29
    assert torch.linalg.vector_norm(error) <= limit * torch.linalg.vector_norm(weight.double())


@pytest.mark.parametrize("threshold", [0.3, 0.01, 1e-9])
def test_a_threshold_is_kept_whatever_it_costs(tmp_path: Path, threshold: float) -> None:
    path = tmp_path / "model.dq"
    info = dq.save_file(small_state(1), path, threshold=threshold, evaluate=error_of)
    assert info.met
    found = error_of(dq.load_file(path)) - 1.0
    assert found <= threshold
    assert found == pytest.approx(info.degradation, abs=1e-12)
    assert info.quality["reference"] == 1.0
    assert info.evaluations >= 1


def test_bolder_thresholds_give_smaller_files(tmp_path: Path) -> None:
    sizes = [
        dq.save_file(small_state(1), tmp_path / "f", threshold=threshold, evaluate=error_of).stored_bytes
        for threshold in (0.5, 0.01, 1e-9)
    ]
    assert sizes == sorted(sizes)
    assert sizes[0] < sizes[-1]


def test_a_quality_to_maximise(tmp_path: Path) -> None:
    info = dq.save_file(
        small_state(1), tmp_path / "f", threshold=0.01, evaluate=lambda state: 2 - error_of(state), mode="max"
    )
    assert info.met
    assert 0 <= info.degradation <= 0.01


@pytest.mark.parametrize(
    "options",
    [
        {"threshold": 0.1},
        {"threshold": 1, "evaluate": error_of},
        {"evaluate": error_of},
        {"threshold": 0.1, "evaluate": error_of, "config": dq.Config()},
        {"threshold": -1.0, "evaluate": error_of},
        {"threshold": 0.1, "evaluate": error_of, "mode": "least"},
    ],
)
def test_arguments_that_do_not_go_together(tmp_path: Path, options: dict[str, object]) -> None:
    with pytest.raises(dq.ConfigError):
        dq.save_file(small_state(1), tmp_path / "f", **options)  # type: ignore[arg-type]
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("result", [float("nan"), "good", None, [], ZeroDivisionError()])
def test_an_evaluate_that_fails_saves_nothing_and_changes_nothing(tmp_path: Path, result: object) -> None:
    def evaluate(state: object) -> object:
        if isinstance(result, Exception):
            raise result
        return result

    state = small_state(1)
    (tmp_path / "f").write_bytes(b"older")
    with pytest.raises(dq.EvaluationError):
        dq.save_file(state, tmp_path / "f", threshold=0.1, evaluate=evaluate)
    assert is_same(state, small_state(1))
    assert (tmp_path / "f").read_bytes() == b"older"


def test_files_that_are_none(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("hello")
    with pytest.raises(dq.CorruptFileError, match="not a DynaQuant checkpoint"):
        dq.load_file(tmp_path / "text")
    with pytest.raises(dq.UnsafePathError):
        dq.load_file(tmp_path)
    with pytest.raises(dq.StorageError):
        dq.load_file(tmp_path / "missing")
    with pytest.raises(dq.StorageError):
        dq.save_file({}, tmp_path / "missing" / "file.dq")


def test_a_key_of_a_store_is_a_file_and_a_delta_is_not(tmp_path: Path) -> None:
    filled(tmp_path)
    key, delta, _ = checkpoint_files(tmp_path)
    assert is_same(dq.load_file(key), small_state(10))
    with pytest.raises(dq.MissingBaseError, match="through its store"):
        dq.load_file(delta)


@pytest.mark.parametrize("kind", ["folder", "pipe", "nothing"])
def test_a_target_that_is_no_file_is_refused_and_stays(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "target"
    if kind == "folder":
        path.mkdir()
    elif kind == "pipe":
        os.mkfifo(path)
    else:
        path = Path()
    before = path.stat().st_ino
    writers = (dq.save_file, to_pt, to_safetensors)
    for write in writers:
        with pytest.raises(dq.UnsafePathError, match="give the path of the file"):
            write({"weight": torch.ones(4)}, path)
    assert path.stat().st_ino == before


@pytest.mark.parametrize("how", ["save_file", "export", "safetensors"])
def test_a_link_goes_on_pointing_to_what_is_written(tmp_path: Path, how: str) -> None:
    """Whoever reads the file that it points to would have gone on with old weights."""
    (tmp_path / "large disk").mkdir()
    target, link = tmp_path / "large disk" / "weights", tmp_path / "weights"
    target.write_bytes(b"old")
    link.symlink_to(target)
    state = {"w": torch.arange(6.0)}
    if how == "save_file":
        dq.save_file(state, link, exact="*")
        found = dq.load_file(target)
        assert torch.equal(dq.load_file(link)["w"], state["w"])
        assert open_source(link).info().stored_bytes == target.stat().st_size
    else:
        with CheckpointStore(tmp_path / "store", exact="*") as store:
            store.save(1, state)
            store.export(1, link, "pt" if how == "export" else "safetensors")
        found = torch.load(target) if how == "export" else load_file(target)
    assert link.is_symlink()
    assert torch.equal(found["w"], state["w"])
    assert sorted(path.name for path in target.parent.iterdir()) == ["weights"]


@pytest.mark.parametrize("how", ["save_file", "pt", "safetensors"])
@pytest.mark.parametrize("kind", ["checkpoint", "pins.json", ".dynaquant.lock"])
def test_nothing_of_a_store_is_written_over_through_a_link_either(
    tmp_path: Path, how: str, kind: str
) -> None:
    """`latest.dq` beside a store is usual, and what builds on the checkpoint would go with it."""
    filled(tmp_path / "store", (10, 20))
    with CheckpointStore(tmp_path / "store") as store:
        store.pin(10)
    (tmp_path / "store" / ".dynaquant.lock").touch()
    target = checkpoint_files(tmp_path / "store")[0] if kind == "checkpoint" else tmp_path / "store" / kind
    before = target.stat().st_ino, target.read_bytes()
    link, further = tmp_path / "latest.dq", tmp_path / "further.dq"
    link.symlink_to(target.relative_to(tmp_path))
    further.symlink_to(link)
    write = {"save_file": dq.save_file, "pt": to_pt, "safetensors": to_safetensors}[how]
    for path in (target, link, further):
        with pytest.raises(dq.UnsafePathError, match="give another path"):
            write({"other": torch.ones(3)}, path)
    assert (target.stat().st_ino, target.read_bytes()) == before
    assert not dq.CheckpointStore(tmp_path / "store").verify()


def test_a_link_to_itself_is_no_checkpoint(tmp_path: Path) -> None:
    (tmp_path / "model.dq").symlink_to(tmp_path / "model.dq")
    with pytest.raises(dq.UnsafePathError):
        dq.load_file(tmp_path / "model.dq")


@pytest.mark.parametrize("how", ["save_file", "pt", "safetensors"])
def test_what_a_killed_process_left_beside_a_file_goes_with_the_next_one(tmp_path: Path, how: str) -> None:
    """A job that is preempted again and again would fill the disk with halves."""
    path, state = tmp_path / "model.dq", {"w": torch.arange(6.0)}
    (tmp_path / "notes.dq.tmp-1").write_text("somebody's")
    process = os.fork()
    if process == 0:
        os.fsync = lambda _: os.kill(os.getpid(), signal.SIGKILL)
        with atomic_file(path) as file:
            file.write(b"half")
    os.waitpid(process, 0)
    (left,) = (one for one in tmp_path.iterdir() if one.name.startswith("model.dq.tmp-"))
    write = {"save_file": partial(dq.save_file, exact="*"), "pt": to_pt, "safetensors": to_safetensors}[how]
    write(state, path)
    assert left.exists()  # so young that its writer may be about to lock it
    os.utime(left, (0, 0))
    with atomic_path("write", path) as other:
        os.utime(other, (0, 0))
        write(state, path)
        assert other.exists()  # somebody is writing it
    assert sorted(one.name for one in tmp_path.iterdir()) == ["model.dq", "notes.dq.tmp-1"]
