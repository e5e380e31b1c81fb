"""A file that cannot be read now may be whole: what it builds on, and what stands on it, stays."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import dynaquant_core as dq
from dynaquant_core.store import CheckpointStore
from dynaquant_core.store.retention import kept, needed, retired
from tests.store.kit import call_instead, checkpoint_files, exact_store, filled, is_same, small_state
from tests.store.test_store_retention import File, folders, policies

LOOKS = ("stat", "fstat", "preadv", "open")


@given(folders(), policies, st.sets(st.integers(0, 6), max_size=2), st.data())
@settings(max_examples=400, deadline=None)
def test_whatever_it_builds_on_stays(
    files: list[File], policy: Any, pins: set[int], data: st.DataObject
) -> None:
    """What retention would keep, had it seen every file, is there after it has not seen one."""
    hidden = data.draw(st.sampled_from(files))
    seen = [file for file in files if file != hidden]
    unread = [(hidden.step, hidden.order[0])]
    gone = retired(seen, policy, pins, unread)
    for file in needed([*kept(seen, policy, pins), hidden], files).values():
        assert file not in gone
    assert all(file in retired(seen, policy, pins) for file in gone)


@contextmanager
def failing_look(at: int, where: Path) -> Iterator[list[str]]:
    """Lets the n-th look at a file of a folder fail once, as a network file system may."""
    count, fired = 0, []

    def wrap(name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def looked(first: Any, *args: Any, **kwargs: Any) -> Any:
            nonlocal count
            path = Path(f"/proc/self/fd/{first}").readlink() if isinstance(first, int) else Path(first)
            writes = name == "open" and args and args[0] & os.O_CREAT
            if path.suffix == ".dq" and path.is_relative_to(where) and not writes:
                count += 1
                if count == at:
                    fired.append(name)
                    raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))
            return real(first, *args, **kwargs)

        return looked

    with pytest.MonkeyPatch.context() as patch:
        for name in LOOKS:
            call_instead(patch, name, wrap(name, getattr(os, name)))
        yield fired


def act(store: CheckpointStore, what: str) -> None:
    if what == "save":
        store.save(40, small_state(40))
    elif what == "compact":
        store.compact()
    else:
        store.delete(20)


def test_what_cannot_be_read_is_not_deleted_below_what_builds_on_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled(tmp_path, (10, 20, 30))
    real, unreadable = os.open, checkpoint_files(tmp_path)[1].name

    def stale(path: Any, *args: Any, **kwargs: Any) -> Any:
        if Path(path).name == unreadable:
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))
        return real(path, *args, **kwargs)

    with monkeypatch.context() as patched:
        patched.setattr(os, "open", stale)
        with pytest.raises(dq.StorageError, match=r"Step 20 stays: .* or delete step 30 first"):
            exact_store(tmp_path).delete(20)
    assert CheckpointStore(tmp_path).verify(deep=True) == []
    assert CheckpointStore(tmp_path).steps() == [10, 20, 30]


@pytest.mark.parametrize("what", ["save", "compact", "delete"])
def test_one_failed_look_loses_nothing(tmp_path: Path, what: str) -> None:
    fired, at = ["first"], 0
    while fired:
        at += 1
        path = tmp_path / str(at)
        filled(path, (10, 20, 30))
        store = exact_store(path, max_chain=8, keep_last=2 if what == "save" else None)
        store.load()
        error = None
        with failing_look(at, path) as fired:
            try:
                act(store, what)
            except dq.DynaQuantError as caught:
                error = caught
        store.close()
        there = CheckpointStore(path)
        must = {30} if what != "save" else {40} if error is None else {20, 30}
        assert must <= set(there.steps()), (fired, error)
        assert all(is_same(there.load(step), small_state(step)) for step in there.steps())
        again = exact_store(path)
        again.load()
        again.save(50, small_state(50))
        assert is_same(CheckpointStore(path).load(), small_state(50))
        again.close()
    assert at > 8


def test_a_step_is_not_deleted_while_what_may_build_on_it_cannot_be_read(tmp_path: Path) -> None:
    filled(tmp_path, (10, 20, 30))
    store = exact_store(tmp_path)
    store.load()
    (newest,) = (path for path in checkpoint_files(tmp_path) if "step-000000030" in path.name)
    real = os.open

    def refuses(path: Any, *args: Any, **kwargs: Any) -> int:
        if str(path) == str(newest):
            raise OSError(errno.EIO, "bad sector")
        return real(path, *args, **kwargs)

    os.utime(newest)  # so that it is read anew
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "open", refuses)
        with pytest.raises(dq.StorageError, match="may build on it"):
            store.delete(20)
        store.delete(30)  # itself may go
    assert store.steps() == [10, 20]
