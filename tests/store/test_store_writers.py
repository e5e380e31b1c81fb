"""Two writers, readers beside a writer, locks that die with their process."""

from __future__ import annotations

import gc
import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import pytest

import dynaquant_core as dq
from dynaquant_core.store import CheckpointStore
from dynaquant_core.store.catalogue import Catalogue
from dynaquant_core.store.chain import Chain, open_chain
from dynaquant_core.store.reader import Reader
from tests.store.kit import checkpoint_files, exact_store, filled, is_same, small_state

ROOT = Path(__file__).parents[2]

HOLDER = """
import os, sys
from pathlib import Path
from tests.store.kit import exact_store, small_state
store = exact_store(Path(sys.argv[1]))
if len(sys.argv) > 2 and sys.argv[2] == "restored":
    store.load()
store.save(1, small_state(1))
if len(sys.argv) > 2 and sys.argv[2] == "fork":
    child = os.fork()
    if child == 0:
        sys.stdin.close()
        os.close(1)
        import time
        time.sleep(30)
        os._exit(0)
    print(child, flush=True)
print(os.getpid(), flush=True)
sys.stdin.read()
"""


def start_holder(path: Path, *words: str) -> subprocess.Popen[str]:
    """A process that has saved into ``path`` and goes on living until its input ends."""
    command = [sys.executable, "-c", HOLDER, str(path), *words]
    return subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def test_a_second_process_is_refused_by_the_firsts_id_until_it_dies(tmp_path: Path) -> None:
    with start_holder(tmp_path) as holder:
        pid = int(holder.stdout.readline())
        store = exact_store(tmp_path)
        assert is_same(store.load(), small_state(1))  # reading takes no lock
        for write in (lambda: store.save(2, small_state(2)), lambda: store.pin(1), store.compact):
            with pytest.raises(dq.StoreLockedError, match=f"pid {pid}"):
                write()
        holder.kill()
        holder.wait()
        store.save(2, small_state(2))
    assert store.steps() == [1, 2]


def test_the_lock_dies_with_its_process_even_where_children_live_on(tmp_path: Path) -> None:
    with start_holder(tmp_path, "fork") as holder:
        orphan = int(holder.stdout.readline())
        int(holder.stdout.readline())
        holder.kill()
        holder.wait()
        store = exact_store(tmp_path)
        store.load()
        assert os.kill(orphan, 0) is None
        store.save(2, small_state(2))
        os.kill(orphan, 9)


def test_a_forked_child_does_not_hold_its_parents_lock(tmp_path: Path) -> None:
    code = """
import os, sys
from pathlib import Path
import dynaquant_core as dq
from tests.store.kit import exact_store, small_state
store = exact_store(Path(sys.argv[1]))
store.save(1, small_state(1))
child = os.fork()
if child == 0:
    try:
        store.save(2, small_state(2))
    except dq.StoreLockedError as error:
        os._exit(7 if f"pid {os.getppid()}" in str(error) else 8)
    os._exit(9)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
store.save(2, small_state(2))
"""
    environment = os.environ | {"DYNAQUANT_THREADS": "1", "OMP_NUM_THREADS": "1"}
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], cwd=ROOT, env=environment, check=True)


def test_two_objects_of_one_process_do_not_write_at_once(tmp_path: Path) -> None:
    first, second = exact_store(tmp_path), exact_store(tmp_path)
    first.save(1, small_state(1))
    with pytest.raises(dq.StoreLockedError, match=f"pid {os.getpid()}"):
        second.save(2, small_state(2))
    second.load()  # a run that is given up and restored in the same process goes on
    second.save(2, small_state(2))
    with pytest.raises(dq.StoreLockedError, match="another store object"):
        first.save(3, small_state(3))
    second.close()
    first.load()
    assert first.save(3, small_state(3)).base_step == 2


def test_a_copy_that_lost_the_lock_is_noticed_by_the_next_save(tmp_path: Path) -> None:
    path = tmp_path / "run"
    store = exact_store(path)
    store.save(1, small_state(1))
    shutil.copytree(path, tmp_path / "copy")  # closes a descriptor of the lock file
    with start_holder(path, "restored") as other:
        pid = int(other.stdout.readline())
        with pytest.raises(dq.StoreLockedError, match=f"pid {pid}"):
            store.save(2, small_state(2))
        other.stdin.close()
        other.wait()
    store.save(2, small_state(2))
    shutil.copytree(path, tmp_path / "again")
    store.save(3, small_state(3))
    with start_holder(path, "restored") as other:  # it was taken again
        assert not other.stdout.readline()
        other.wait()
    assert store.steps() == [1, 2, 3]


def test_an_object_that_is_gone_holds_nothing(tmp_path: Path) -> None:
    store = exact_store(tmp_path)
    store.save(1, small_state(1))
    del store
    gc.collect()
    with start_holder(tmp_path, "restored") as other:
        assert int(other.stdout.readline()) == other.pid
        other.stdin.close()
        other.wait()


def test_a_folder_that_was_removed_and_made_anew(tmp_path: Path) -> None:
    path = tmp_path / "store"
    store = exact_store(path)
    store.save(1, small_state(1))
    for file in path.iterdir():
        file.unlink()
    path.rmdir()
    assert store.save(2, small_state(2)).kind == "key"
    assert is_same(CheckpointStore(path).load(), small_state(2))


def test_readers_beside_a_writer_that_retires(tmp_path: Path) -> None:
    """Readers get a step as it was saved, never a mixture and never an error, while files come and go."""
    filled(tmp_path, (0,))
    stop = threading.Event()
    failures: list[str] = []
    seen: set[int] = set()

    def read() -> None:
        while not stop.is_set():
            try:
                state = CheckpointStore(tmp_path).load()
            except Exception as error:  # noqa: BLE001 - any error is a failure of this test
                failures.append(f"{type(error).__name__}: {error}")
                return
            seen.add(state["step"])
            if not is_same(state, small_state(state["step"])):
                failures.append(f"step {state['step']} is wrong")

    readers = [threading.Thread(target=read) for _ in range(3)]
    for reader in readers:
        reader.start()
    with exact_store(tmp_path, keep_last=1, max_chain=2) as store:
        store.load()
        for step in range(1, 60):
            store.save(step, small_state(step))
            if step % 15 == 0:
                store.compact()
    stop.set()
    for reader in readers:
        reader.join()
    assert failures == []
    assert len(seen) > 3


def test_newest_never_goes_back_for_a_reader_beside_a_writer(tmp_path: Path) -> None:
    filled(tmp_path, (0,))
    stop = threading.Event()
    order: list[int] = []

    def watch() -> None:
        store = CheckpointStore(tmp_path)
        while not stop.is_set():
            newest = store.newest()
            assert newest is not None
            order.append(newest.sequence)

    watcher = threading.Thread(target=watch)
    watcher.start()
    with exact_store(tmp_path, keep_last=2, keep_every=10, max_chain=1) as store:
        store.load()
        for step in range(1, 50):
            store.save(step, small_state(step))
    stop.set()
    watcher.join()
    assert order == sorted(order)
    assert len(set(order)) > 3


# -- races, made to happen -----------------------------------------------------------------------


def test_a_newest_that_is_retired_while_it_is_read_is_not_fallen_back_from(tmp_path: Path) -> None:
    filled(tmp_path, (1, 2), max_chain=0)
    store = exact_store(tmp_path, keep_every=1, max_chain=0)
    store.load()
    reader = Reader(tmp_path, Catalogue(tmp_path), None)

    def action(chain: Chain) -> int:
        if chain.last.entry.step == 2 and store.steps() == [1, 2]:
            store.save(3, small_state(3))
            store.delete(2)
            raise dq.TruncatedError("as if it had been cut while it was read")
        return chain.last.entry.step

    info, step = reader.read(None, action)
    assert (info.step, step, info.skipped) == (3, 3, ())


def test_a_file_that_goes_between_listing_and_reading_is_not_damage(tmp_path: Path) -> None:
    filled(tmp_path, (1,))
    catalogue = Catalogue(tmp_path)
    listed = catalogue._listed() | {"step-000000009-seq-000009.dq"}
    catalogue._listed = lambda: listed  # type: ignore[method-assign]
    scan = catalogue.scan()
    assert ([entry.step for entry in scan.entries], scan.damaged) == ([1], ())


def test_a_file_that_is_replaced_between_listing_and_reading_is_noticed(tmp_path: Path) -> None:
    filled(tmp_path, (1, 2), max_chain=0)
    first, second = checkpoint_files(tmp_path)
    scan = Catalogue(tmp_path).scan()
    first.write_bytes(second.read_bytes())
    with pytest.raises(dq.CorruptFileError, match="replaced"), open_chain(scan, scan.entries[0]):
        pass


def test_a_save_beside_compact_in_another_thread_is_not_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = exact_store(tmp_path, keep_last=1)
    for step in range(3):
        store.save(step, small_state(step))
    began, true = [], store.begin

    def begin(*args: object, **kwargs: object) -> object:
        saving = true(*args, **kwargs)
        began.append(saving)
        if len(began) == 1:
            thread = threading.Thread(target=store.compact)
            thread.start()
            thread.join()
        return saving

    monkeypatch.setattr(store, "begin", begin)
    store.save(3, small_state(3))
    assert len(began) == 2, "the base has gone between"
    assert is_same(store.load(3), small_state(3))


def test_what_a_writer_retires_meanwhile_is_no_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`dynaquant verify` beside a training run, as from cron."""
    store = exact_store(tmp_path, keep_last=2, max_chain=2)
    for step in range(4):
        store.save(step, small_state(step))
    looks, true = [], Catalogue.scan

    def scan(self: Catalogue) -> object:
        found = true(self)
        if self is beside._catalogue and len(looks) < 2:
            looks.append(found)
            for step in range(10 * len(looks), 10 * len(looks) + 5):
                store.save(step, small_state(step))
        return found

    beside = CheckpointStore(tmp_path)
    monkeypatch.setattr(Catalogue, "scan", scan)
    assert beside.verify(deep=True) == []
    monkeypatch.undo()
    newest = checkpoint_files(tmp_path)[-1]
    data = bytearray(newest.read_bytes())
    data[len(data) // 2] ^= 1
    newest.write_bytes(data)
    assert [problem.name for problem in beside.verify()] == [newest.name]
