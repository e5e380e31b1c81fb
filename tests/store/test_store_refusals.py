"""The system refuses: no permission, a full disk, a budget that cannot be kept."""

from __future__ import annotations

import errno
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import dynaquant_core as dq
from dynaquant_core.store import CheckpointStore
from dynaquant_core.store.names import checkpoint_name, temporary_name
from tests.store.kit import exact_store, filled, is_same, leftovers, small_state

READ_ONLY = """
import os, sys
import dynaquant_core as dq
from tests.store.kit import exact_store, filled, is_same, small_state
from pathlib import Path
path = Path(sys.argv[1])
filled(path)
os.chmod(path, 0o755)
for file in path.iterdir():
    os.chmod(file, 0o644)
store = exact_store(path)
state = store.load()
os.chmod(path, 0o555)
if os.geteuid() == 0:
    os.setgid(65534)
    os.setuid(65534)
try:
    store.save(40, state)
except dq.StorageError as error:
    print(error.errno, error)
before = exact_store(path)
assert before.steps() == [10, 20, 30] and is_same(before.load(), small_state(30))
try:
    exact_store(path / "below").save(1, state)
except dq.StorageError as error:
    print(error.errno, error)
"""

UNWRITABLE = """
import logging, os, sys
import torch
import dynaquant_core as dq

path, model = sys.argv[1], torch.nn.Linear(32, 32)
with dq.Checkpointer(path, model, every=1) as checkpoints:
    checkpoints.step()
logging.basicConfig(stream=sys.stdout, level=logging.WARNING, force=True)
checkpoints = dq.Checkpointer(path, model, every=1)
os.chmod(path, 0o555)
if os.geteuid() == 0:
    os.setgid(65534)
    os.setuid(65534)
assert checkpoints.restore() == 1
os._exit(0)
"""

CLOSED = """
import os, sys
from pathlib import Path
import torch
import dynaquant_core as dq
from dynaquant_core.cli import main

def commands(path):
    for words in (["log", path], ["import", path + "/a.pt", path + "x"], ["run", path + "/a.yaml"]):
        sys.argv = ["dynaquant", *words]
        try:
            main()
        except SystemExit as ended:
            assert ended.code == 1

path, model = sys.argv[1], torch.nn.Linear(2, 2)
sys.stderr = open(os.devnull, "w")
commands(path + "/nowhere")  # imports what commands need, which the user below may not read
sys.stderr = sys.stdout
os.chmod(Path(path).parent, 0o000)
if os.geteuid() == 0:
    os.setgid(65534)
    os.setuid(65534)
for attempt in (
    lambda: dq.CheckpointStore(path),
    lambda: dq.Checkpointer(path, model, every=1),
    lambda: dq.load_file(path + "/m.dq"),
    lambda: dq.save_file({"a": torch.ones(2)}, path + "/m.dq"),
):
    try:
        attempt()
    except dq.StorageError as error:
        print(error)
commands(path)
"""


@pytest.fixture
def open_path() -> Iterator[Path]:
    """A folder that every user may search: pytest closes its own to others whenever it starts."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


def refusals(script: str, path: Path) -> list[str]:
    """What a child printed that gave its rights up, as root ignores modes."""
    child = [sys.executable, "-c", script, str(path)]
    done = subprocess.run(child, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_a_folder_without_write_permission(open_path: Path) -> None:
    refused = refusals(READ_ONLY, open_path / "store")
    assert len(refused) == 2
    assert all(line.startswith("13 ") and "permission" in line for line in refused)


def test_a_restore_from_a_folder_that_cannot_be_written_says_so_before_the_first_save(
    open_path: Path,
) -> None:
    (said,) = [line for line in refusals(UNWRITABLE, open_path / "store") if "will fail" in line]
    assert "cannot be written by this user" in said


def test_a_folder_that_may_not_even_be_looked_at(open_path: Path) -> None:
    filled(open_path / "closed" / "store")
    refused = refusals(CLOSED, open_path / "closed" / "store")
    assert len(refused) == 7
    assert all("Permission denied" in line and "bug" not in line for line in refused)


@pytest.fixture
def small_disk(tmp_path: Path) -> object:
    """A file system of 256 KiB, where this user may mount one."""
    path = tmp_path / "disk"
    path.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(path)]
    try:
        subprocess.run(mount, check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"a small tmpfs cannot be mounted here: {error}")
    yield path
    subprocess.run(["umount", "--lazy", str(path)], check=True, capture_output=True)


def failure_of(store: CheckpointStore, step: int) -> dq.StorageError | None:
    """The error of a save, if it failed."""
    try:
        store.save(step, small_state(step))
    except dq.StorageError as error:
        return error
    return None


def test_a_full_disk_is_refused_before_the_first_write_and_recovers(small_disk: Path) -> None:
    store = exact_store(small_disk, max_chain=0)
    saved = []
    error = None
    while error is None:
        error = failure_of(store, len(saved))
        saved += [len(saved)] if error is None else []
    assert saved
    assert "are free" in str(error)
    assert error.errno == errno.ENOSPC
    assert not leftovers(small_disk)
    assert store.steps() == saved
    assert is_same(exact_store(small_disk).load(), small_state(saved[-1]))
    store.delete(saved[0])
    store.save(99, small_state(99))
    assert is_same(exact_store(small_disk).load(), small_state(99))


def fill(path: Path, **options: Any) -> list[int]:
    """Saves until the disk is full; returns the steps."""
    with exact_store(path, **options) as store:
        saved: list[int] = []
        while failure_of(store, len(saved)) is None:
            saved.append(len(saved))
    return saved


def test_a_tighter_retention_makes_its_own_room_on_a_full_disk(small_disk: Path) -> None:
    saved = fill(small_disk, max_chain=0)
    store = exact_store(small_disk, max_chain=0, keep_last=2)  # what the error said to do
    store.load()
    store.save(99, small_state(99))
    assert store.steps() == [saved[-1], 99]
    assert not store.verify(deep=True)
    assert is_same(store.load(99), small_state(99))


def test_room_is_not_made_by_what_the_save_builds_on(small_disk: Path) -> None:
    fill(small_disk, max_chain=0)
    (small_disk / "filler").write_bytes(bytes(shutil.disk_usage(small_disk).free))
    store = exact_store(small_disk, keep_last=1)
    store.load(1)  # back to an older step, which retention alone would let go
    info = store.save(2, small_state(2))
    assert (info.kind, info.base_step) == ("delta", 1)
    assert store.steps() == [1, 2]
    assert is_same(store.load(2), small_state(2))


def test_what_a_killed_save_left_makes_room_for_the_next_one(small_disk: Path) -> None:
    store = exact_store(small_disk, max_chain=0)
    store.save(1, small_state(1))
    half = small_disk / temporary_name(checkpoint_name(2, 2))
    half.write_bytes(bytes(shutil.disk_usage(small_disk).free))
    store.save(2, small_state(2))
    assert not half.exists()
    assert store.steps() == [1, 2]


def test_compact_frees_what_needs_no_room_before_it_asks_for_some(small_disk: Path) -> None:
    filled(small_disk, (1, 2, 3), max_chain=0)
    with exact_store(small_disk) as store:
        store.load()
        assert store.save(4, small_state(4)).base_step == 3
    (small_disk / "filler").write_bytes(bytes(shutil.disk_usage(small_disk).free))
    with exact_store(small_disk, keep_last=1) as store:
        store.compact()
        assert (store.steps(), store.info(4).kind) == ([4], "key")
        assert is_same(store.load(), small_state(4))


@pytest.mark.parametrize("filler", range(0, 80, 8))
def test_a_disk_that_fills_up_while_writing(
    small_disk: Path, filler: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The check beforehand is switched off, so that a write itself meets the end of the disk."""
    monkeypatch.setattr("dynaquant_core.store.writer.require_space", lambda folder, most, estimate: None)
    store = exact_store(small_disk, max_chain=0)
    store.save(1, small_state(1))
    free = shutil.disk_usage(small_disk).free
    (small_disk / "filler").write_bytes(bytes(max(0, free - 1024 * filler)))
    error = failure_of(store, 2)
    assert error is None or (error.errno, store.steps()) == (errno.ENOSPC, [1])
    assert not leftovers(small_disk)
    (small_disk / "filler").unlink()
    assert is_same(exact_store(small_disk).load(), small_state(store.steps()[-1]))
    store.save(3, small_state(3))
    assert is_same(exact_store(small_disk).load(3), small_state(3))


def test_a_budget_that_cannot_be_kept_is_said_before_anything_is_written(tmp_path: Path) -> None:
    store = exact_store(tmp_path, keep_within="10kB")
    with pytest.raises(dq.BudgetError, match="keep_within"):
        store.save(1, small_state(1))
    assert store.steps() == []


@pytest.mark.parametrize("name", ["out.pt", "out.safetensors"])
def test_an_export_onto_a_full_disk_says_so_and_leaves_nothing(
    small_disk: Path, tmp_path: Path, name: str
) -> None:
    store = exact_store(tmp_path / "store")
    store.save(1, {"weight": torch.ones(400, 400)})
    with pytest.raises(dq.StorageError, match="free some space") as caught:
        store.export(1, small_disk / name)
    assert caught.value.errno == errno.ENOSPC
    assert list(small_disk.iterdir()) == []
