"""Bad input: each case ends in one clear error of the family."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import dynaquant_core as dq
from dynaquant_core.format import FileReader, FileWriter
from dynaquant_core.store import CheckpointStore
from tests.store.kit import checkpoint_files, exact_store, filled, small_state

# -- places that are no stores -------------------------------------------------------------------


def test_a_store_that_is_a_file(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("hello")
    with pytest.raises(dq.NotAStoreError, match="is a file"):
        CheckpointStore(path)
    with pytest.raises(dq.DynaQuantError):
        CheckpointStore(path / "below").save(1, {"w": torch.ones(2)})
    assert path.read_text() == "hello"


@pytest.mark.parametrize("exists", [True, False])
def test_an_empty_or_missing_folder(tmp_path: Path, exists: bool) -> None:
    path = tmp_path if exists else tmp_path / "missing"
    store = CheckpointStore(path)
    assert store.newest() is None
    assert store.steps() == []
    assert store.verify() == []
    for read in (store.load, lambda: store.load_into({})):
        with pytest.raises(dq.EmptyStoreError, match="save into it first"):
            read()
    with pytest.raises(dq.CheckpointNotFoundError):
        store.load(3)
    assert path.exists() == exists


def test_a_foreign_folder_is_one_error_however_it_is_used(tmp_path: Path) -> None:
    log = tmp_path / "train.log"
    log.write_text("epoch 1")
    store = exact_store(tmp_path)
    uses: list[Callable[[], object]] = [
        *(store.newest, store.steps, store.best, store.verify, store.load, store.resume, store.compact),
        *(lambda: store.load_into({}), lambda: store.load(3), lambda: store.info(3)),
        *(lambda: store.pin(3), lambda: store.delete(3), lambda: store.save(1, small_state(1))),
    ]
    for use in uses:
        with pytest.raises(dq.NotAStoreError, match="holds other files but no checkpoint; give the folder"):
            use()
    assert list(tmp_path.iterdir()) == [log], "not even a lock is left among somebody's files"
    assert log.read_text() == "epoch 1"
    log.unlink()
    assert store.save(1, small_state(1)).step == 1


def test_what_a_run_writes_beside_its_store_stops_no_save(tmp_path: Path) -> None:
    """A logger that is given the folder too may write before the first save."""
    store = exact_store(tmp_path)
    (tmp_path / "train.log").write_text("epoch 1")
    store.save(1, small_state(1))
    other = exact_store(tmp_path)
    assert other.newest() is not None
    other.load()
    assert other.save(2, small_state(2)).base_step == 1
    assert (tmp_path / "train.log").read_text() == "epoch 1"


@pytest.mark.parametrize("name", [".gitignore", "lost+found"])
def test_hidden_files_and_the_systems_own_make_no_foreign_folder(tmp_path: Path, name: str) -> None:
    """A disk of one's own for checkpoints comes with a lost+found."""
    (tmp_path / name).mkdir()
    store = exact_store(tmp_path)
    assert store.newest() is None
    with pytest.raises(dq.EmptyStoreError, match="save into it first"):
        store.load()
    assert store.save(1, small_state(1)).step == 1


def test_another_runs_folder(tmp_path: Path) -> None:
    filled(tmp_path)
    before = sorted(tmp_path.iterdir())
    with pytest.raises(dq.StoreNotEmptyError, match="another run"):
        exact_store(tmp_path).save(40, small_state(40))
    assert sorted(tmp_path.iterdir()) == before
    store = exact_store(tmp_path)
    store.load()
    assert store.save(40, small_state(40)).base_step == 30


def test_another_runs_folder_whose_files_are_all_broken(tmp_path: Path) -> None:
    filled(tmp_path, (1,))
    checkpoint_files(tmp_path)[0].write_bytes(b"")
    with pytest.raises(dq.StoreNotEmptyError):
        exact_store(tmp_path).save(2, small_state(2))


# -- arguments -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options",
    [
        {"max_chain": -1},
        {"max_chain": 1.5},
        {"keep_last": 0},
        {"keep_every": True},
        {"keep_within": "many"},
        {"keep_within": "0GB"},
        {"keep_within": -5},
        {"keep_within": "9" * 400 + "GB"},
        {"keep_within": "9" * 400},
        {"keep_within": 10**5000},
        {"keep_within": float("nan")},
        {"moments": "7bit"},
        {"exact": [3]},
        {"method": 3},
        {"method": {"coder": "paper"}},
        {"method": {"name": "dynaquant", "codre": "paper"}},
    ],
)
def test_options_out_of_range_are_config_errors(tmp_path: Path, options: dict[str, object]) -> None:
    with pytest.raises(dq.ConfigError):
        CheckpointStore(tmp_path, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("step", [-1, 1.0, True, "3", None, 1 << 64])
def test_a_step_that_is_none(tmp_path: Path, step: object) -> None:
    with pytest.raises(dq.ConfigError, match="step must be"):
        CheckpointStore(tmp_path).save(step, {})  # type: ignore[arg-type]


def test_a_config_of_another_method(tmp_path: Path) -> None:
    with pytest.raises(dq.ConfigError, match="takes a config of type"):
        CheckpointStore(tmp_path).save(1, small_state(1), config=object())
    assert not list(tmp_path.glob("*.dq"))


def test_an_unsupported_object_names_its_path_and_touches_nothing(tmp_path: Path) -> None:
    path = tmp_path / "store"
    with pytest.raises(dq.UnsupportedStateError, match=r"model\.hook"):
        CheckpointStore(path).save(1, {"model": {"hook": object()}})
    assert not path.exists()


@pytest.mark.parametrize("step", ["20", 20.0, True])
def test_a_step_that_is_no_whole_number_is_refused_everywhere(tmp_path: Path, step: object) -> None:
    filled(tmp_path)
    store = exact_store(tmp_path)
    for use in (store.load, store.info, store.delete, store.pin, lambda s: store.load_into({}, s)):
        with pytest.raises(dq.ConfigError, match="whole number"):
            use(step)  # type: ignore[arg-type]
    assert store.steps() == [10, 20, 30]


@pytest.mark.parametrize("exact", [None, 3, ("a", 3)])
def test_patterns_that_are_no_texts_are_refused(tmp_path: Path, exact: object) -> None:
    with pytest.raises(dq.ConfigError, match="name patterns"):
        CheckpointStore(tmp_path, exact=exact)  # type: ignore[arg-type]


def test_gradients_that_are_no_mapping_are_refused(tmp_path: Path) -> None:
    with pytest.raises(dq.ConfigError, match="gradients must be a mapping"):
        CheckpointStore(tmp_path).save(1, small_state(1), gradients=3)  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", ["pipe", "link", "folder"])
def test_pins_that_are_no_file_hold_up_nothing(
    tmp_path: Path, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Opening a pipe waits for a writer: a save would stand still for ever."""
    store = exact_store(tmp_path / "store", keep_last=1)
    store.save(1, small_state(1))
    pins = tmp_path / "store" / "pins.json"
    if kind == "pipe":
        os.mkfifo(pins)
    elif kind == "link":
        pins.symlink_to(tmp_path / "elsewhere")
    else:
        pins.mkdir()
    store.save(2, small_state(2))
    assert "pins file" in caplog.text
    assert store.steps() == [1, 2], "nothing is removed while nobody knows what is pinned"
    with pytest.raises(dq.CorruptFileError, match="not a regular file"):
        store.pin(2)


# -- an index that says what no writer says -------------------------------------------------------


def crafted(source: Path, target: Path, name: str, dtype: str) -> None:
    """A checkpoint's file again, with sums that hold, whose index gives one tensor another dtype."""
    target.parent.mkdir()
    with FileReader(source) as reader, target.open("wb") as file:
        writer, index = FileWriter(file), reader.index
        for number, stream in enumerate(index.streams):
            owner = "" if stream.tensor < 0 else index.tensors[stream.tensor].name
            writer.add(stream.part, owner, stream.kind, stream.codec, bytes(reader.read(number)))
        tensors = [replace(each, dtype=dtype) if each.name == name else each for each in index.tensors]
        writer.finish(index.meta, index.skeleton, tensors)


@pytest.mark.parametrize("moments", ["8bit", "compact", "minimal", "sparse", "second", "none"])
@pytest.mark.parametrize("dtype", ["int32", "complex64", "bool", "float8_e5m2"])
def test_moments_of_a_dtype_that_no_writer_gives_them(tmp_path: Path, moments: str, dtype: str) -> None:
    """Some policies raised what torch raises, and a look through a store ended there."""
    torch.manual_seed(0)
    state = {"exp_avg": torch.randn(64, 64), "exp_avg_sq": torch.rand(64, 64), "step": torch.tensor(1.0)}
    tree = {"model": {"w": torch.randn(64, 64)}, "optimizer": {"state": {0: state}, "param_groups": []}}
    with CheckpointStore(tmp_path / "run", moments=moments) as store:
        store.save(1, tree)
    (path,) = checkpoint_files(tmp_path / "run")
    for number, name in enumerate(("exp_avg", "exp_avg_sq")):
        folder = tmp_path / str(number)
        crafted(path, folder / path.name, f"optimizer.state.0.{name}", dtype)
        with pytest.raises(dq.CorruptFileError, match=rf"{name}.*{dtype}"):
            CheckpointStore(folder).load(1)
        with pytest.raises(dq.CorruptFileError):
            dq.load_file(folder / path.name)
        (problem,) = CheckpointStore(folder).verify(deep=True)
        assert dtype in problem.reason


METHODS = ["lattice", "dynaquant", "cnr", "qd", "gobo", "topn", "scar", "lc", "excp", "exact"]


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("dtype", ["int32", "complex64", "float16"])
def test_weights_of_a_dtype_that_no_writer_gives_them(tmp_path: Path, method: str, dtype: str) -> None:
    weights = torch.randn(64, 64, generator=torch.Generator().manual_seed(0))
    with CheckpointStore(tmp_path / "run", method=method) as store:
        store.save(1, {"w": weights})
    (path,) = checkpoint_files(tmp_path / "run")
    crafted(path, tmp_path / "other" / path.name, "w", dtype)
    with suppress(dq.DynaQuantError):  # what is no damage to a method may be read: as a tensor of that dtype
        found = CheckpointStore(tmp_path / "other").load(1)["w"]
        assert str(found.dtype) == f"torch.{dtype}"
